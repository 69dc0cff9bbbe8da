//! The functions as callers in C call them, without a dataplane.

use core::ffi::CStr;
use core::mem::size_of;

use super::*;
use crate::abi::rowmill_status::*;
use crate::guard::planted;

/// The thread's text.
fn said() -> String {
    // SAFETY: it is valid until the next call, and copied before.
    let text = unsafe { CStr::from_ptr(rowmill_error_text()) };
    text.to_str().expect("UTF-8").to_owned()
}

/// An exported function's name, and a call of it.
type Call = (&'static str, fn() -> c_int);

/// Every exported function that can fail, called with NULL and 0 throughout.
const CALLS: &[Call] = {
    const N: *mut c_void = ptr::null_mut();
    &[
        // SAFETY: NULL is taken everywhere, and refused where it has to be; so below.
        ("rowmill_connect", || unsafe {
            rowmill_connect(N.cast(), N.cast(), N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_close", || unsafe { rowmill_close(N.cast()) }),
        // SAFETY: see above.
        ("rowmill_describe", || unsafe {
            rowmill_describe(N.cast(), N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_tables", || unsafe {
            rowmill_tables(N.cast(), N.cast(), 0, N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_bind", || unsafe {
            rowmill_bind(N.cast(), N.cast(), 0, 0, N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_schema_layout", || unsafe {
            rowmill_schema_layout(N.cast(), 0, N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_answer_bytes", || unsafe {
            rowmill_answer_bytes(N.cast(), 0, N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_schema_free", || unsafe {
            rowmill_schema_free(N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_region_create", || unsafe {
            rowmill_region_create(N.cast(), 0, N.cast(), N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_region_free", || unsafe {
            rowmill_region_free(N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_region_register", || unsafe {
            rowmill_region_register(N.cast(), N, 0, N.cast(), N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_region_describe", || unsafe {
            rowmill_region_describe(N.cast(), N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_submit", || unsafe {
            rowmill_submit(N.cast(), N.cast(), N.cast(), N.cast(), N.cast(), N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_prefetch", || unsafe {
            rowmill_prefetch(N.cast(), N.cast(), N.cast(), N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_poll", || unsafe {
            rowmill_poll(N.cast(), N.cast(), N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_wait", || unsafe {
            rowmill_wait(N.cast(), 0, 0, N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_notify_fd", || unsafe {
            rowmill_notify_fd(N.cast(), N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_cancel", || unsafe { rowmill_cancel(N.cast(), 0) }),
        // SAFETY: see above.
        ("rowmill_gpu_open", || unsafe {
            rowmill_gpu_open(N.cast(), N.cast(), N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_gpu_close", || unsafe {
            rowmill_gpu_close(N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_gpu_report", || unsafe {
            rowmill_gpu_report(N.cast(), N.cast(), 0, N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_gpu_region_report", || unsafe {
            rowmill_gpu_region_report(N.cast(), N, N.cast(), 0, N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_gpu_staged_instead", || unsafe {
            rowmill_gpu_staged_instead(N.cast(), N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_gpu_register", || unsafe {
            rowmill_gpu_register(N.cast(), N, 0)
        }),
        // SAFETY: see above.
        ("rowmill_gpu_unregister", || unsafe {
            rowmill_gpu_unregister(N.cast(), N)
        }),
        // SAFETY: see above.
        ("rowmill_submit_on_stream", || unsafe {
            rowmill_submit_on_stream(N.cast(), N.cast(), N.cast(), N, 0, N, N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_gpu_check", || unsafe {
            rowmill_gpu_check(N.cast())
        }),
        // SAFETY: see above.
        ("rowmill_gpu_synchronize", || unsafe {
            rowmill_gpu_synchronize(N.cast(), N)
        }),
    ]
};

/// Those that can't fail, and have nothing to guard.
const SURE: [&str; 3] = [
    "rowmill_version",
    "rowmill_error_text",
    "rowmill_status_name",
];

#[test]
fn a_panic_in_any_function_is_a_status() {
    for (name, call) in CALLS {
        planted::plant();
        assert_eq!(call(), ROWMILL_INTERNAL as c_int, "{name} is not guarded");
        assert!(said().contains("planted"), "{name}: {}", said());
    }
}

#[test]
fn every_function_takes_null() {
    for (name, call) in CALLS {
        let ends = name.contains("free") || name.contains("close");
        let wanted = if ends { ROWMILL_OK } else { ROWMILL_INVALID };
        assert_eq!(call(), wanted as c_int, "{name}");
        assert!(ends || said().contains("NULL"), "{name}: {}", said());
    }
}

#[test]
fn all_functions_are_in_these_tests_and_in_the_version_script() {
    let source = concat!(include_str!("lib.rs"), include_str!("gpu.rs"));
    let exported = source.split("extern \"C\" fn ").skip(1);
    let mut exported: Vec<&str> = exported.filter_map(|rest| rest.split('(').next()).collect();
    exported.sort_unstable();
    let mut tested: Vec<&str> = CALLS.iter().map(|(name, _)| *name).chain(SURE).collect();
    tested.sort_unstable();
    assert_eq!(exported, tested);
    let map = include_str!("../rowmill.map");
    let mut named: Vec<&str> = map
        .lines()
        .map(str::trim)
        .filter_map(|line| line.strip_suffix(';'))
        .filter(|name| name.starts_with("rowmill_"))
        .collect();
    named.sort_unstable();
    assert_eq!(exported, named);
}

/// The text of a status in the header: the comment before its line, which there is one of.
fn described(header: &str, name: &str, code: c_int) -> String {
    let lines: Vec<&str> = header.lines().map(str::trim).collect();
    let line = format!("{name} = {code},");
    let found: Vec<usize> = (0..lines.len()).filter(|&at| lines[at] == line).collect();
    let &[at] = &*found else {
        panic!("the header has `{line}` {} times", found.len());
    };
    let comment = lines[..at].iter().rev();
    let comment: Vec<&str> = comment.map_while(|line| line.strip_prefix("// ")).collect();
    let words: Vec<&str> = comment.into_iter().rev().collect();
    words.join(" ")
}

#[test]
fn every_status_has_a_name_and_a_sentence_and_stands_in_header_and_readme_once() {
    let header = include_str!("../include/rowmill.h");
    let readme = include_str!("../README.md");
    let statuses = header
        .split("enum rowmill_status")
        .nth(1)
        .expect("it is there");
    let statuses = statuses.split('}').next().expect("it ends");
    for &(status, name) in crate::error::NAMES {
        let (code, name) = (status as c_int, name.to_str().expect("letters"));
        // SAFETY: names are texts for ever.
        let told = unsafe { CStr::from_ptr(rowmill_status_name(code)) };
        assert_eq!(told.to_str(), Ok(name));
        let text = described(statuses, name, code);
        assert!(text.ends_with('.'), "{name} has no sentence: `{text}`");
        let row = format!("| `{name}` | {code} | {text} |");
        let rows = readme.lines().filter(|line| *line == row).count();
        assert_eq!(rows, 1, "the README is to have once: {row}");
        let named = readme.matches(&format!("| `{name}` |")).count();
        assert_eq!(named, 1, "{name} has several rows");
    }
    let declared = statuses.lines().filter(|line| line.contains(" = ")).count();
    assert_eq!(declared, crate::error::NAMES.len(), "one has no name");
}

#[test]
fn handles_that_are_none_are_refused() {
    let bytes = [0u64; 2];
    let cases = [
        (bytes.as_ptr().addr(), "is no handle"),
        (usize::MAX, "is no handle"),
        (1 << 40 | 1, "is no handle"),
        (7, "is no handle"),
    ];
    for (value, wanted) in cases {
        let handle = ptr::without_provenance::<rowmill_client>(value);
        let error = find::<Client, _>(handle).err().expect("no handle");
        assert!(error.text.contains(wanted), "{value:#x}: {}", error.text);
    }
}

#[test]
fn connecting_to_nobody_says_so() {
    let mut client = ptr::dangling_mut();
    let urls = [
        (c"http://x", "this build supports"),
        (c"shm:/nowhere/at.sock", "is rowmilld running"),
    ];
    for (url, wanted) in urls {
        // SAFETY: all that is pointed to is there.
        let status = unsafe { rowmill_connect(url.as_ptr(), ptr::null(), &raw mut client) };
        assert_eq!(status, ROWMILL_CONNECT as c_int, "{url:?}");
        assert!(client.is_null());
        assert!(said().contains(wanted), "{}", said());
    }
    // SAFETY: as above.
    let status = unsafe { rowmill_connect(c"\xff".as_ptr(), ptr::null(), &raw mut client) };
    assert_eq!(status, ROWMILL_INVALID as c_int);
    assert!(said().contains("not in UTF-8"), "{}", said());
    let mut options = rowmill_options {
        size: size_of::<rowmill_options>() as u32,
        credits: 70_000,
        name: ptr::null(),
        source_bytes: 0,
        reply_limit_us: 0,
        waiting: 0,
        reserved: 0,
    };
    let mut refused = |wanted: &str, options: &rowmill_options| {
        // SAFETY: as above.
        let status = unsafe { rowmill_connect(c"shm:/x".as_ptr(), options, &raw mut client) };
        assert_eq!(status, ROWMILL_INVALID as c_int, "{wanted}");
        assert!(said().contains(wanted), "{}", said());
    };
    refused("credits is 70000", &options);
    (options.credits, options.waiting) = (0, 9);
    refused("waiting is 9", &options);
    options.size = 0;
    refused("sizeof(rowmill_options)", &options);
}

#[test]
fn the_version_is_the_package_s() {
    let part = |text: &str| text.parse::<u32>().expect("a number");
    let (major, minor, patch) = (
        part(env!("CARGO_PKG_VERSION_MAJOR")),
        part(env!("CARGO_PKG_VERSION_MINOR")),
        part(env!("CARGO_PKG_VERSION_PATCH")),
    );
    assert_eq!(rowmill_version(), major << 16 | minor << 8 | patch);
}

#[test]
fn texts_are_a_thread_s_own() {
    // SAFETY: NULL is taken.
    let status = unsafe { rowmill_cancel(ptr::null(), 1) };
    assert_eq!(status, ROWMILL_INVALID as c_int);
    let other = std::thread::spawn(said).join().expect("no panic");
    assert_eq!(other, "");
    assert!(said().contains("the client is NULL"));
}
