//! Which licences dependencies may have.

/// Permissive licences that go with Apache-2.0. MPL-2.0 is left out: its copyleft by file is no
/// obstacle as such, but taking it on should be a decision.
pub(crate) const ALLOWED: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// What is wrong with a package's licence, an SPDX expression (or the older form with a slash).
pub(crate) fn fault(package: &str, licence: Option<&str>) -> Option<String> {
    let Some(licence) = licence else {
        return Some(format!("{package} names no licence"));
    };
    match spdx::Expression::parse_mode(licence, spdx::ParseMode::LAX) {
        Err(error) => Some(format!(
            "{package}: `{licence}` is no SPDX expression: {}",
            error.reason
        )),
        Ok(expression) => {
            let good = expression.evaluate(|one| ALLOWED.contains(&one.to_string().as_str()));
            (!good).then(|| format!("{package}: `{licence}` is not allowed"))
        }
    }
}

#[test]
fn expressions_are_understood() {
    let good = [
        "MIT",
        "MIT/Apache-2.0",
        "Unlicense OR MIT",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception",
        "GPL-3.0-only OR (ISC AND Zlib)",
    ];
    for licence in good {
        assert_eq!(fault("p", Some(licence)), None);
    }
    let bad = [
        "GPL-3.0-only",
        "MIT AND GPL-3.0-or-later",
        "MPL-2.0",
        "BSD-3-Clause AND (OpenSSL OR SSPL-1.0)",
        "Apache-2.0 WITH Classpath-exception-2.0",
    ];
    for licence in bad {
        let expected = format!("p: `{licence}` is not allowed");
        assert_eq!(fault("p", Some(licence)), Some(expected));
    }
    assert_eq!(fault("p", None), Some("p names no licence".into()));
    let nonsense = fault("p", Some("MIT OR")).expect("a fault");
    assert!(nonsense.contains("no SPDX expression"), "{nonsense}");
}
