//! Where `unsafe` may stand.

/// Folders whose crates may use it: memory, transports, foreign interfaces.
const FOLDERS: &[&str] = &["dataplane/arena/", "dataplane/port/", "ffi/"];

/// The crates that deny it and allow it by file, from their `src` on.
const BY_FILE: &[(&str, &[&str])] = &[
    // One for each instruction set and what is written once for all of them, the place that selects among them, and the
    // measurement of the memory's limit, which is written for one too.
    (
        "dataplane/pooling/",
        &[
            "avx2.rs",
            "avx512.rs",
            "kernel.rs",
            "limit.rs",
            "neon.rs",
            "select.rs",
        ],
    ),
    // One for each instruction set, and the pass over tags that is inlined into them.
    (
        "dataplane/cache/",
        &[
            "store/tags/avx2.rs",
            "store/tags/avx512.rs",
            "store/tags/neon.rs",
            "store/tags/pass.rs",
            "store/tags/portable.rs",
        ],
    ),
];

fn may_use(path: &str) -> bool {
    let listed = |(folder, files): &(&str, &[&str])| {
        let file = path
            .strip_prefix(folder)
            .and_then(|file| file.strip_prefix("src/"));
        file.is_some_and(|file| files.contains(&file))
    };
    FOLDERS.iter().any(|folder| path.starts_with(folder)) || BY_FILE.iter().any(listed)
}

/// What is wrong with a source file: `unsafe`, or leave to use it, where neither belongs.
pub(crate) fn source_faults(path: &str, source: &str) -> Vec<String> {
    if may_use(path) {
        return Vec::new();
    }
    let code = without_comments_and_text(source);
    let mut faults = Vec::new();
    for (line, text) in code.lines().enumerate() {
        let words: Vec<&str> = text
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .collect();
        let leave = words.contains(&"unsafe_code")
            && (words.contains(&"allow") || words.contains(&"expect") || words.contains(&"warn"));
        if words.contains(&"unsafe") || leave {
            faults.push(format!("{path}:{}: {}", line + 1, text.trim()));
        }
    }
    faults
}

/// What is wrong with the root of a library or program: it must forbid `unsafe`; those that allow it by file deny it.
pub(crate) fn root_faults(path: &str, source: &str) -> Vec<String> {
    if FOLDERS.iter().any(|folder| path.starts_with(folder)) {
        return Vec::new();
    }
    let level = if BY_FILE.iter().any(|(folder, _)| path.starts_with(folder)) {
        "deny"
    } else {
        "forbid"
    };
    let code = without_comments_and_text(source);
    let start = format!("#![{level}(");
    let set = code
        .lines()
        .filter_map(|line| line.trim().strip_prefix(&start))
        .any(|rest| {
            rest.trim_end_matches(")]")
                .split(',')
                .any(|lint| lint.trim() == "unsafe_code")
        });
    if set {
        Vec::new()
    } else {
        vec![format!("{path} lacks #![{level}(unsafe_code)]")]
    }
}

/// The source with comments, strings and characters blanked out, line for line.
fn without_comments_and_text(source: &str) -> String {
    let mut rest = source;
    let mut code = String::with_capacity(source.len());
    while let Some(first) = rest.chars().next() {
        let before = code.chars().next_back().unwrap_or(' ');
        let (skipped, blank) = match skipped(rest, before) {
            0 => (first.len_utf8(), false),
            len => (len, true),
        };
        let (part, after) = rest.split_at(skipped);
        if blank {
            code.push(' ');
            code.extend(part.chars().filter(|&c| c == '\n'));
        } else {
            code.push_str(part);
        }
        rest = after;
    }
    code
}

/// Bytes of the comment, string or character that `rest` begins with; 0 for code.
fn skipped(rest: &str, before: char) -> usize {
    let to = |found: Option<usize>, len: usize| found.map_or(rest.len(), |at| at + len);
    if rest.starts_with("//") {
        return to(rest.find('\n'), 0);
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if rest.starts_with('"') {
        return string(rest);
    }
    let word_goes_on = before.is_alphanumeric() || before == '_';
    if !word_goes_on && let Some(raw) = rest.strip_prefix("r").or(rest.strip_prefix("br")) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let open = rest.len() - raw.len() + hashes + 1;
            let close = format!("\"{}", "#".repeat(hashes));
            return rest[open..]
                .find(&close)
                .map_or(rest.len(), |at| open + at + close.len());
        }
    }
    if rest.starts_with('\'') {
        return character(rest);
    }
    0
}

fn block_comment(rest: &str) -> usize {
    let (mut at, mut depth) = (2, 1);
    while depth > 0 {
        match (rest[at..].find("/*"), rest[at..].find("*/")) {
            (Some(open), Some(close)) if open < close => (at, depth) = (at + open + 2, depth + 1),
            (_, Some(close)) => (at, depth) = (at + close + 2, depth - 1),
            (_, None) => return rest.len(),
        }
    }
    at
}

fn string(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    rest.len()
}

/// A character ends with a quote after one character or an escape; anything else is a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let after = at + escaped.len_utf8();
            rest[after..]
                .find('\'')
                .map_or(rest.len(), |end| after + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

#[test]
fn unsafe_outside_its_places_is_found() {
    let source = "fn f() {\n    unsafe { g() }\n}\n";
    let place = "dataplane/engine/src/lib.rs";
    assert_eq!(
        source_faults(place, source),
        ["dataplane/engine/src/lib.rs:2: unsafe { g() }"]
    );
    assert_eq!(
        source_faults("dataplane/pooling/src/scalar.rs", source).len(),
        1
    );
    assert_eq!(
        source_faults("dataplane/pooling/tests/avx2.rs", source).len(),
        1
    );
    assert_eq!(
        source_faults("dataplane/cache/src/avx2.rs", source).len(),
        1
    );
    let good = [
        "dataplane/pooling/src/avx2.rs",
        "dataplane/cache/src/store/tags/avx2.rs",
        "dataplane/port/src/shm/rings.rs",
        "ffi/c/src/a.rs",
    ];
    for path in good {
        assert_eq!(source_faults(path, source), [""; 0]);
    }
    for bad in [
        "unsafe impl Send for A {}",
        "#[unsafe(no_mangle)]",
        "#![allow(unsafe_code)]",
        "#[expect(unsafe_code, reason = \"x\")]",
        "let c = '\"'; unsafe {}",
        "let l: &'static str = r\"\\\"; unsafe {}",
        "/* /* */ */ unsafe {}",
        "let s = \"\\\\\"; unsafe {}",
        "let c = '\\''; unsafe {}",
    ] {
        assert_eq!(source_faults(place, bad).len(), 1, "{bad}");
    }
    for good in [
        "// unsafe",
        "/// `unsafe` is not here",
        "/* a\n unsafe /* */ unsafe */ fn f<'a>() {}",
        "let s = \"unsafe \\\" unsafe\";",
        "let s = r#\"unsafe \" unsafe\"#;",
        "#![forbid(unsafe_code)]",
        "#![deny(unsafe_op_in_unsafe_fn)]",
        "fn unsafely() {}",
    ] {
        assert_eq!(source_faults(place, good), [""; 0], "{good}");
    }
}

#[test]
fn roots_that_do_not_forbid_unsafe_are_found() {
    let wire = "dataplane/wire/src/lib.rs";
    assert_eq!(
        root_faults(wire, "//! A.\n#![forbid(unsafe_code)]\n"),
        [""; 0]
    );
    assert_eq!(
        root_faults(wire, "#![forbid(missing_docs, unsafe_code)]"),
        [""; 0]
    );
    let fault = ["dataplane/wire/src/lib.rs lacks #![forbid(unsafe_code)]"];
    assert_eq!(root_faults(wire, "//! A."), fault);
    assert_eq!(root_faults(wire, "// #![forbid(unsafe_code)]"), fault);
    assert_eq!(root_faults(wire, "#![deny(unsafe_code)]"), fault);
    let pooling = "dataplane/pooling/src/lib.rs";
    assert_eq!(
        root_faults(pooling, "#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]"),
        [""; 0]
    );
    assert_eq!(root_faults(pooling, "#![allow(unsafe_code)]").len(), 1);
    assert_eq!(root_faults("dataplane/arena/src/lib.rs", ""), [""; 0]);
}
