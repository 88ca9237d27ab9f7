//! Quantities: their number and their canonical text.
//!
//! In: the text of a capacity or a request. Out: the text the API server answers with (`1024Mi`
//! becomes `1Gi`, `0.5` becomes `500m`), and the number for comparisons. Numbers are kept in
//! billionths as 128-bit integers; finer digits round up.

/// Billionths in one.
const SCALE: u32 = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Binary,
    Decimal,
    Exponent,
}

const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

/// The number in billionths, for comparisons.
pub fn number(text: &str) -> Option<i128> {
    parse(text).map(|(number, _)| number)
}

/// The canonical text; nothing when the text is not a quantity.
// kube-apiserver: apimachinery/pkg/api/resource/quantity.go, CanonicalizeBytes.
pub fn canonical(text: &str) -> Option<String> {
    let (number, format) = parse(text)?;
    let one = 10_i128.pow(SCALE);
    if format == Format::Binary && number.abs() >= 1024 * one && number % one == 0 {
        let mut whole = number / one;
        let mut power = 0;
        while power < 60 && whole % 1024 == 0 {
            whole /= 1024;
            power += 10;
        }
        let suffix = BINARY.iter().find(|(_, bits)| *bits == power).map_or("", |(suffix, _)| suffix);
        return Some(format!("{whole}{suffix}"));
    }
    if number == 0 {
        return Some("0".to_owned());
    }
    let (mut digits, mut exponent) = (number, -9);
    while digits % 1000 == 0 {
        digits /= 1000;
        exponent += 3;
    }
    let suffix = DECIMAL.iter().find(|(_, power)| *power == exponent);
    Some(match (format, suffix) {
        (Format::Exponent, _) if exponent == 0 => digits.to_string(),
        (Format::Binary | Format::Decimal, Some((suffix, _))) => format!("{digits}{suffix}"),
        _ => format!("{digits}e{exponent}"),
    })
}

fn parse(text: &str) -> Option<(i128, Format)> {
    let (is_negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (mantissa, suffix) = unsigned.split_at(end);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (bits, power, format) = factor(suffix)?;
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let shift = i32::try_from(SCALE).ok()? + power - i32::try_from(fraction.len()).ok()?;
    let scaled = digits.checked_mul(1_i128.checked_shl(bits)?)?;
    let number = if shift >= 0 {
        scaled.checked_mul(10_i128.checked_pow(shift.unsigned_abs())?)?
    } else {
        let divisor = 10_i128.checked_pow(shift.unsigned_abs())?;
        scaled / divisor + i128::from(scaled % divisor != 0)
    };
    Some((if is_negative { -number } else { number }, format))
}

fn factor(suffix: &str) -> Option<(u32, i32, Format)> {
    if let Some((_, bits)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some((*bits, 0, Format::Binary));
    }
    if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((0, *power, Format::Decimal));
    }
    let power = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    // Larger ones overflow anyway.
    (-30..=30).contains(&power).then_some((0, power, Format::Exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_canonical_text_is_upstreams() {
        for (given, expected) in [
            ("1024Mi", "1Gi"),
            ("1Gi", "1Gi"),
            ("1500Mi", "1500Mi"),
            ("512", "512"),
            ("512Ki", "512Ki"),
            ("0.5", "500m"),
            ("1000", "1k"),
            ("1500M", "1500M"),
            ("1e3", "1e3"),
            ("0.5Gi", "512Mi"),
            ("0", "0"),
            ("0Gi", "0"),
            ("-1Gi", "-1Gi"),
            ("100000G", "100T"),
        ] {
            assert_eq!(canonical(given).as_deref(), Some(expected), "{given}");
        }
        for wrong in ["", "Gi", "1 Gi", "1.2.3", "one", "1gi", "1e99"] {
            assert_eq!(canonical(wrong), None, "{wrong}");
        }
    }
}
