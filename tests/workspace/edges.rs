//! Which crate may depend on which. A dependency for tests alone follows the same rule.

/// A crate of the workspace as cargo sees it.
#[derive(Debug)]
pub(crate) struct Crate {
    /// The package's name.
    pub(crate) name: String,
    /// Its folder from the root on.
    pub(crate) folder: String,
    /// The workspace's crates that it depends on, in whatever way.
    pub(crate) depends_on: Vec<String>,
}

/// Package, folder, and what it may depend on; in an order in which no crate depends on a later one.
/// Pooling and engine know the arena for `Window` alone: results are stored through it, since no
/// reference may be made to memory that a peer can write.
const ALLOWED: &[(&str, &str, &[&str])] = &[
    ("rowmill-wire", "dataplane/wire", &[]),
    ("rowmill-arena", "dataplane/arena", &[]),
    ("rowmill-link", "dataplane/link", &[]),
    // What names can be.
    ("rowmill-trust", "dataplane/trust", &["rowmill-link"]),
    ("rowmill-verbs", "ffi/verbs", &[]),
    ("rowmill-cuda-stand-in", "ffi/cuda/stand-in", &[]),
    // The stand-in for its tests alone.
    ("rowmill-cuda", "ffi/cuda", &["rowmill-cuda-stand-in"]),
    ("rowmill-pooling", "dataplane/pooling", &["rowmill-arena"]),
    ("rowmill-table", "dataplane/table", &["rowmill-arena"]),
    // Of the arena how lines are prefetched.
    ("rowmill-policy", "dataplane/policy", &["rowmill-arena"]),
    (
        "rowmill-cache",
        "dataplane/cache",
        &["rowmill-arena", "rowmill-table", "rowmill-policy"],
    ),
    (
        "rowmill-engine",
        "dataplane/engine",
        &[
            "rowmill-wire",
            "rowmill-arena",
            "rowmill-pooling",
            "rowmill-table",
            "rowmill-cache",
        ],
    ),
    (
        "rowmill-port",
        "dataplane/port",
        &["rowmill-wire", "rowmill-arena", "rowmill-verbs"],
    ),
    (
        "rowmill-rowmilld",
        "dataplane/rowmilld",
        &[
            "rowmill-wire",
            "rowmill-link",
            "rowmill-trust",
            "rowmill-arena",
            "rowmill-pooling",
            "rowmill-table",
            "rowmill-cache",
            "rowmill-engine",
            "rowmill-port",
        ],
    ),
    (
        "rowmill-client",
        "ffi/client",
        &[
            "rowmill-wire",
            "rowmill-arena",
            "rowmill-cuda-stand-in",
            "rowmill-cuda",
            "rowmill-port",
        ],
    ),
    ("rowmill-capi", "ffi/capi", &["rowmill-client"]),
    (
        "rowmill-python",
        "ffi/python",
        &["rowmill-client", "rowmill-table"],
    ),
    // The dataplane's policy tells how many hits a size has; it is pure, and knows nothing of the dataplane.
    (
        // Of the arena how lines are prefetched.
        "rowmill-admission",
        "control/admission",
        &["rowmill-arena", "rowmill-link", "rowmill-policy"],
    ),
    ("rowmill-state", "control/state", &[]),
    // These rules.
    ("rowmill-workspace", "tests/workspace", &[]),
    (
        "rowmill-control",
        "control/rowmill-control",
        &[
            "rowmill-link",
            "rowmill-trust",
            "rowmill-admission",
            "rowmill-state",
            "rowmill-table",
        ],
    ),
    (
        "rowmill-cli",
        "control/rowmill",
        &[
            "rowmill-trust",
            "rowmill-wire",
            "rowmill-table",
            "rowmill-client",
        ],
    ),
];

/// These may depend on everything, and nothing on them.
const ON_EVERYTHING: &[(&str, &str)] = &[("rowmill-bench", "bench"), ("rowmill-tests", "tests")];

/// What breaks the rule.
pub(crate) fn faults(crates: &[Crate]) -> Vec<String> {
    crates.iter().flat_map(faults_of).collect()
}

fn faults_of(found: &Crate) -> Vec<String> {
    let name = &found.name;
    let everything = ON_EVERYTHING.iter().find(|(known, _)| known == name);
    let listed = ALLOWED.iter().find(|(known, ..)| known == name);
    let folder = match (everything, listed) {
        (Some((_, folder)), _) | (_, Some((_, folder, _))) => *folder,
        (None, None) => return vec![format!("{name} is not in the table of crates")],
    };
    let mut faults = Vec::new();
    if found.folder != folder {
        faults.push(format!("{name} lies in {}, not in {folder}", found.folder));
    }
    // On itself a crate may depend for its tests, with a feature that others use.
    for on in found.depends_on.iter().filter(|on| *on != name) {
        let top = ON_EVERYTHING.iter().any(|(known, _)| known == on);
        let allowed = everything.is_some() || listed.is_some_and(|l| l.2.contains(&on.as_str()));
        if top || !allowed {
            faults.push(format!("{name} must not depend on {on}"));
        }
    }
    faults
}

fn made_up(name: &str, folder: &str, on: &[&str]) -> Crate {
    Crate {
        name: name.into(),
        folder: folder.into(),
        depends_on: on.iter().map(|&on| on.into()).collect(),
    }
}

#[test]
fn edges_against_the_data_are_found() {
    let fault = |name, folder, on| faults(&[made_up(name, folder, &[on])]).join("; ");
    assert_eq!(fault("rowmill-port", "dataplane/port", "rowmill-wire"), "");
    assert_eq!(
        fault("rowmill-port", "dataplane/port", "rowmill-engine"),
        "rowmill-port must not depend on rowmill-engine"
    );
    assert_eq!(fault("rowmill-port", "dataplane/port", "rowmill-verbs"), "");
    assert_eq!(
        fault("rowmill-verbs", "ffi/verbs", "rowmill-wire"),
        "rowmill-verbs must not depend on rowmill-wire"
    );
    assert_eq!(
        fault("rowmill-engine", "dataplane/engine", "rowmill-verbs"),
        "rowmill-engine must not depend on rowmill-verbs"
    );
    assert_eq!(
        fault("rowmill-wire", "dataplane/wire", "rowmill-arena"),
        "rowmill-wire must not depend on rowmill-arena"
    );
    assert_eq!(fault("rowmill-bench", "bench", "rowmill-rowmilld"), "");
    assert_eq!(
        fault("rowmill-bench", "bench", "rowmill-tests"),
        "rowmill-bench must not depend on rowmill-tests"
    );
    assert_eq!(
        fault("rowmill-client", "ffi/c", "rowmill-port"),
        "rowmill-client lies in ffi/c, not in ffi/client"
    );
    assert_eq!(
        fault("rowmill-new", "dataplane/new", "rowmill-wire"),
        "rowmill-new is not in the table of crates"
    );
}

#[test]
fn the_table_has_one_direction() {
    for (at, (name, _, on)) in ALLOWED.iter().enumerate() {
        for on in *on {
            let earlier = ALLOWED[..at].iter().any(|(known, ..)| known == on);
            assert!(earlier, "{name} may depend on {on}, which stands behind it");
        }
    }
}
