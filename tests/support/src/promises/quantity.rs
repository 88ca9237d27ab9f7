//! Sizes as the API writes them, compared exactly.
//!
//! In: a text such as `1Gi`, `1.5G` or `2e3`. Out: billionths, finer digits rounded up as upstream does.

/// Digits behind the point of one that are kept.
const SCALE: i32 = 9;

/// `None` for what is no quantity, or too large to be compared.
pub fn billionths(text: &str) -> Option<i128> {
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (binary, decimal) = factor(suffix)?;
    let shift = SCALE.checked_add(decimal)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let value = digits.checked_mul(1_i128.checked_shl(binary)?)?;
    let power = 10_i128.checked_pow(shift.unsigned_abs());
    let value = match (shift < 0, power) {
        (false, power) => value.checked_mul(power?)?,
        (true, Some(power)) => value / power + i128::from(value % power > 0),
        (true, None) => i128::from(value > 0),
    };
    Some(if is_negative { -value } else { value })
}

/// Powers of two and of ten.
fn factor(suffix: &str) -> Option<(u32, i32)> {
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].into_iter().zip((1..).map(|power| 10 * power));
    if let Some((_, power)) = binary.into_iter().find(|(name, _)| *name == suffix) {
        return Some((power, 0));
    }
    let decimal =
        ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"].into_iter().zip((-3..).map(|power| 3 * power));
    if let Some((_, power)) = decimal.into_iter().find(|(name, _)| *name == suffix) {
        return Some((0, power));
    }
    Some((0, suffix.strip_prefix(['e', 'E'])?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::billionths;

    #[test]
    fn sizes_are_read_as_the_api_writes_them() {
        let cases = [
            ("1", "1000m", true),
            ("1Gi", "1073741824", true),
            ("1.5Ki", "1536", true),
            ("1e3", "1k", true),
            ("1E3", "1k", true),
            ("800E", "800000P", true),
            ("0.1n", "1n", true),
            ("1Gi", "1G", false),
            ("-1", "1", false),
        ];
        for (one, other, is_same) in cases {
            let (one, other) = (billionths(one).unwrap(), billionths(other).unwrap());
            assert_eq!(one == other, is_same, "{one} {other}");
        }
        assert!(billionths("1G").unwrap() < billionths("1Gi").unwrap());
        for wrong in ["", "Gi", "1gi", "1 Gi", "1.2.3", "e3"] {
            assert_eq!(billionths(wrong), None, "{wrong}");
        }
    }
}
