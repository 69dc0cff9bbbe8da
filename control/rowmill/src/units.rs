//! Sizes, counts and times as people read and write them.

/// Reads a size: a number with an optional unit, `KiB` to `TiB` (or `K` to `T`), or `KB` to `TB` for
/// powers of 1000.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let usage = || format!("a size is a number and a unit, as 512MiB, 4GiB or 1.5TB, not `{text}`");
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| usage())?;
    let unit = unit.trim().to_ascii_lowercase();
    let (prefix, base) = match unit.strip_suffix("ib") {
        Some(prefix) => (prefix, 1024f64),
        None => match unit.strip_suffix('b') {
            Some(prefix) => (prefix, 1000f64),
            None => (unit.as_str(), 1024f64),
        },
    };
    let power = match prefix {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(usage()),
    };
    let bytes = number * base.powi(power);
    if bytes >= 1.0 && bytes < 2f64.powi(63) {
        Ok(bytes as u64)
    } else {
        Err(format!(
            "a size is at least a byte and less than 8 EiB, which `{text}` is not"
        ))
    }
}

/// A size in the largest unit that leaves at least one before the point.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut scaled = count as f64 / 1024.0;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    format!("{scaled:.1} {}", UNITS[unit])
}

/// A number with its thousands set apart.
pub(crate) fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// A time in its two largest units.
pub(crate) fn duration(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let mut left = seconds;
    let mut parts = Vec::new();
    for (size, unit) in UNITS {
        if left >= size && parts.len() < 2 {
            parts.push(format!("{} {unit}", left / size));
        }
        left %= size;
    }
    if parts.is_empty() {
        "0 s".into()
    } else {
        parts.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, expected) in [
            ("1", 1),
            ("4096", 4096),
            ("512MiB", 512 << 20),
            ("4 GiB", 4 << 30),
            ("1.5k", 1536),
            ("2TB", 2_000_000_000_000),
            ("3gb", 3_000_000_000),
            ("7B", 7),
        ] {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "0",
            "GiB",
            "-1",
            "1.2.3",
            "4 apples",
            "9e99",
            "99999999TiB",
            "0.1",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        let none = parse_bytes("0MiB").unwrap_err();
        assert!(none.contains("at least a byte"), "{none}");
    }

    #[test]
    fn sizes_and_counts_are_written() {
        assert_eq!(
            [bytes(12), bytes(1536), bytes(5 << 30), bytes(3 << 50)],
            ["12 B", "1.5 KiB", "5.0 GiB", "3072.0 TiB"]
        );
        assert_eq!(
            [thousands(7), thousands(1234), thousands(204_184_588)],
            ["7", "1 234", "204 184 588"]
        );
    }

    #[test]
    fn durations_have_two_units() {
        let cases = [
            (0, "0 s"),
            (59, "59 s"),
            (3600, "1 h"),
            (3661, "1 h 1 min"),
            (90_061, "1 d 1 h"),
            (86_401, "1 d 1 s"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text);
        }
    }
}
