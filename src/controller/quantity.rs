//! Kubernetes quantities, compared exactly.
//!
//! In: the text of `spec.capacity` and `resources.requests`. Out: an ordered number. Kept in
//! billionths as a 128-bit integer, because 800E bytes must still compare right (a 64-bit integer
//! ends at 8E). Finer digits round up, as upstream does. Nothing is printed back: what we write
//! into `status.capacity` is the volume's own text.

use std::num::IntErrorKind;

use thiserror::Error;

/// Billionths in one.
const SCALE: u32 = 9;

/// A quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity(i128);

/// Why a text is not a quantity that can be compared.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantityError {
    /// Not of the form the API defines.
    #[error("{0:?} is not a quantity")]
    Malformed(String),
    /// Larger than anything that can be stored.
    #[error("{0:?} is too large")]
    TooLarge(String),
}

/// What a suffix multiplies by.
enum Factor {
    /// 2 to the power.
    Binary(u32),
    /// 10 to the power.
    Decimal(i32),
}

impl std::str::FromStr for Quantity {
    type Err = QuantityError;

    // KCM: apimachinery/pkg/api/resource/quantity.go, ParseQuantity.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let malformed = || QuantityError::Malformed(text.to_owned());
        let too_large = || QuantityError::TooLarge(text.to_owned());
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let factor = factor(suffix).ok_or_else(malformed)?;

        // No digit at all, or a second point, is no number either.
        let digits = format!("{whole}{fraction}");
        let mut value: i128 = digits.parse().map_err(|error: std::num::ParseIntError| {
            if *error.kind() == IntErrorKind::PosOverflow { too_large() } else { malformed() }
        })?;
        let places = i32::try_from(fraction.len()).map_err(|_| malformed())?;
        let mut exponent = SCALE.cast_signed() - places;
        match factor {
            Factor::Binary(power) => {
                value = value.checked_mul(1_i128 << power).ok_or_else(too_large)?;
            }
            Factor::Decimal(power) => exponent += power,
        }
        let value = shift(value, exponent).ok_or_else(too_large)?;
        Ok(Self(if negative { -value } else { value }))
    }
}

impl Quantity {
    /// As bytes, rounded as a floating point number is.
    pub fn bytes(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "for gauges, which are of that type")]
        let billionths = self.0 as f64;
        billionths / 1e9
    }

    /// Whole GiB in this many bytes; none below zero.
    pub fn gibibytes(self) -> u64 {
        let billion = 10_i128.pow(SCALE);
        let bytes = self.0 / billion + i128::from(self.0 % billion > 0);
        u64::try_from(bytes >> 30).unwrap_or_default()
    }
}

/// `value` times ten to the `exponent`, rounded up.
fn shift(value: i128, exponent: i32) -> Option<i128> {
    if value == 0 {
        return Some(0);
    }
    let power = 10_i128.checked_pow(exponent.unsigned_abs());
    if exponent >= 0 {
        return power.and_then(|power| value.checked_mul(power));
    }
    Some(power.map_or(1, |power| value / power + i128::from(value % power != 0)))
}

fn factor(suffix: &str) -> Option<Factor> {
    Some(match suffix {
        "" => Factor::Decimal(0),
        "n" => Factor::Decimal(-9),
        "u" => Factor::Decimal(-6),
        "m" => Factor::Decimal(-3),
        "k" => Factor::Decimal(3),
        "M" => Factor::Decimal(6),
        "G" => Factor::Decimal(9),
        "T" => Factor::Decimal(12),
        "P" => Factor::Decimal(15),
        "E" => Factor::Decimal(18),
        "Ki" => Factor::Binary(10),
        "Mi" => Factor::Binary(20),
        "Gi" => Factor::Binary(30),
        "Ti" => Factor::Binary(40),
        "Pi" => Factor::Binary(50),
        "Ei" => Factor::Binary(60),
        _ => {
            let exponent: i16 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            Factor::Decimal(i32::from(exponent))
        }
    })
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::*;

    fn quantity(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn quantities_compare_by_value() {
        let cases = [
            ("1Gi", "1073741824", Ordering::Equal),
            ("1G", "1Gi", Ordering::Less),
            ("1e3", "1k", Ordering::Equal),
            ("1E3", "1000", Ordering::Equal),
            ("1E", "1000P", Ordering::Equal),
            ("0.5Gi", "512Mi", Ordering::Equal),
            (".5", "500m", Ordering::Equal),
            ("1.", "1", Ordering::Equal),
            ("-1", "1", Ordering::Less),
            ("+1", "1", Ordering::Equal),
            ("200E", "800E", Ordering::Less),
            ("950E", "800E", Ordering::Greater),
            ("800E", "800000P", Ordering::Equal),
            ("8Ei", "9223372036854775808", Ordering::Equal),
            ("8Ei", "9223372036854775807", Ordering::Greater),
            ("0.1n", "1n", Ordering::Equal),
            ("1e-30", "1n", Ordering::Equal),
            ("1.0000000000", "1", Ordering::Equal),
            ("0", "0Gi", Ordering::Equal),
            ("1000n", "1u", Ordering::Equal),
            ("1000u", "1m", Ordering::Equal),
            ("1000k", "1M", Ordering::Equal),
            ("1000M", "1G", Ordering::Equal),
            ("1000G", "1T", Ordering::Equal),
            ("1000T", "1P", Ordering::Equal),
            ("1024", "1Ki", Ordering::Equal),
            ("1024Ki", "1Mi", Ordering::Equal),
            ("1024Gi", "1Ti", Ordering::Equal),
            ("1024Ti", "1Pi", Ordering::Equal),
            ("1024Pi", "1Ei", Ordering::Equal),
        ];
        for (left, right, expected) in cases {
            assert_eq!(quantity(left).cmp(&quantity(right)), expected, "{left} ? {right}");
        }
    }

    #[test]
    fn part_of_a_byte_counts_as_one_and_part_of_a_gibibyte_as_none() {
        let cases = [
            ("1Gi", 1),
            ("1073741823", 0),
            ("1073741823.5", 1),
            ("2147483648.5", 2),
            ("3.9Gi", 3),
            ("-9Gi", 0),
        ];
        for (text, whole) in cases {
            assert_eq!(quantity(text).gibibytes(), whole, "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", "-", ".", "Gi", "1 Gi", "1gi", "1e", "1.2.3", "1Ki2", "--1", "1e99999"] {
            assert!(matches!(text.parse::<Quantity>(), Err(QuantityError::Malformed(_))), "{text:?}");
        }
        for text in ["1e99", "999999999999999999999999999999999999999999", "999999999999999999999Ei"] {
            assert!(matches!(text.parse::<Quantity>(), Err(QuantityError::TooLarge(_))), "{text:?}");
        }
    }
}
