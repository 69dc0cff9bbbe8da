//! Which licences dependencies may have.

/// Permissive licences that go with Apache-2.0. MPL-2.0 is left out: its copyleft by file is no
/// obstacle as such, but taking it on should be a decision.
pub(crate) const ALLOWED: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    // Boost's, not the Business Source Licence, whose name here is BUSL-1.1.
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// A package that comes with its licence's text and names no licence: taken by name and version, if the
/// text is what was read when it was taken on.
struct ByText {
    package: &'static str,
    version: &'static str,
    licence: &'static str,
    /// Sentences of the licence, which its text has to have with all white space being one space.
    sentences: &'static [&'static str],
}

const BY_TEXT: &[ByText] = &[ByText {
    package: "rdma-sys",
    version: "0.3.0",
    licence: "MIT",
    sentences: &[
        "MIT License Copyright (c) 2021 datenlord Permission is hereby granted, free of charge, to any person",
        "to deal in the Software without restriction, including without limitation the rights to use, copy, \
         modify, merge, publish, distribute, sublicense, and/or sell copies of the Software",
        "The above copyright notice and this permission notice shall be included in all copies or substantial \
         portions of the Software.",
        "THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND",
    ],
}];

/// The licence of a package that names none but has a text, if it is one of those known here.
pub(crate) fn named_by_text(package: &str, version: &str, text: &str) -> Option<&'static str> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    let known = |one: &&ByText| {
        one.package == package
            && one.version == version
            && text.starts_with(one.sentences[0])
            && one.sentences.iter().all(|sentence| text.contains(sentence))
    };
    BY_TEXT.iter().find(known).map(|one| one.licence)
}

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

#[test]
fn a_licence_known_by_its_text_is_known_by_that_text_only() {
    let text = "MIT License\n\nCopyright (c) 2021 datenlord\n\n\
        Permission is hereby granted, free of charge, to any person obtaining a copy\n\
        of this software and associated documentation files (the \"Software\"), to deal\n\
        in the Software without restriction, including without limitation the rights\n\
        to use, copy, modify, merge, publish, distribute, sublicense, and/or sell\n\
        copies of the Software, and to permit persons to whom the Software is\n\
        furnished to do so, subject to the following conditions:\n\n\
        The above copyright notice and this permission notice shall be included in all\n\
        copies or substantial portions of the Software.\n\n\
        THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR\n\
        IMPLIED";
    assert_eq!(named_by_text("rdma-sys", "0.3.0", text), Some("MIT"));
    assert_eq!(named_by_text("rdma-sys", "0.3.1", text), None);
    assert_eq!(named_by_text("rdma-core", "0.3.0", text), None);
    assert_eq!(named_by_text("rdma-sys", "0.3.0", ""), None);
    let other = text.replace("without restriction", "without commercial use");
    assert_eq!(named_by_text("rdma-sys", "0.3.0", &other), None);
    let no_sale = text.replace(", and/or sell", "");
    assert_eq!(named_by_text("rdma-sys", "0.3.0", &no_sale), None);
    let more = format!("Not the {text}");
    assert_eq!(named_by_text("rdma-sys", "0.3.0", &more), None);
}
