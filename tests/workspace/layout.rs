//! Folders at the root, the lint table, and the code map of ARCHITECTURE.md.

/// The folders of DESIGN.md section 2; `target` is cargo's and ignored by git.
const FOLDERS: &[&str] = &[
    ".cargo",
    ".ci",
    ".git",
    "bench",
    "control",
    "dataplane",
    "deploy",
    "ffi",
    "target",
    "tests",
];

/// Folders that should not be at the root.
pub(crate) fn folder_faults(folders: impl IntoIterator<Item = String>) -> Vec<String> {
    folders
        .into_iter()
        .filter(|folder| !FOLDERS.contains(&folder.as_str()))
        .map(|folder| format!("{folder}/ does not belong at the root"))
        .collect()
}

/// What a crate's manifest lacks: the workspace's lints, its version of the language, its licence.
pub(crate) fn manifest_faults(path: &str, manifest: &str) -> Vec<String> {
    let inherits = |table: &str, line: &str| {
        let mut inside = false;
        manifest.lines().map(str::trim).any(|l| {
            if l.starts_with('[') {
                inside = l == table;
            }
            inside && l == line
        })
    };
    [
        ("[lints]", "workspace = true"),
        ("[package]", "edition.workspace = true"),
        ("[package]", "license.workspace = true"),
    ]
    .into_iter()
    .filter(|(table, line)| !inherits(table, line))
    .map(|(table, line)| format!("{path} has no `{line}` under {table}"))
    .collect()
}

/// Files that the section "Code map" names in backquotes (from the root on, with a `/`) and that are not there,
/// and crates that the document does not name or that have no invariant in it.
pub(crate) fn code_map_faults(
    document: &str,
    crates: &[String],
    exists: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut faults = Vec::new();
    let Some((_, map)) = document.split_once("\n## Code map") else {
        return vec!["there is no section `## Code map`".into()];
    };
    let map = map.split("\n## ").next().unwrap_or(map);
    let quoted: Vec<&str> = map.split('`').skip(1).step_by(2).collect();
    for name in &quoted {
        let is_path = name.contains('/')
            && !name.contains([' ', '*', ':', '<'])
            && !name.starts_with(['/', '~']);
        if is_path && !exists(name) {
            faults.push(format!("`{name}` is not there"));
        }
    }
    for folder in crates {
        if !quoted
            .iter()
            .any(|name| name.trim_end_matches('/') == folder)
        {
            faults.push(format!("the crate `{folder}` is not in the code map"));
        }
    }
    let invariants = document.matches("Invariant:").count();
    if invariants < crates.len() {
        faults.push(format!(
            "{invariants} lines `Invariant: ...` for {} crates",
            crates.len()
        ));
    }
    faults
}

#[test]
fn stray_folders_are_found() {
    let faults = folder_faults(["bench", "scripts", ".ci"].map(String::from));
    assert_eq!(faults, ["scripts/ does not belong at the root"]);
}

#[test]
fn manifests_without_the_lint_table_are_found() {
    let package = "[package]\nname = \"p\"\nedition.workspace = true\nlicense.workspace = true\n";
    let good = format!("{package}\n[lints]\nworkspace = true\n");
    assert_eq!(manifest_faults("p", &good), [""; 0]);
    let other = format!("{package}[dependencies]\nworkspace = true\n[lints]\n");
    let expected = ["p has no `workspace = true` under [lints]"];
    assert_eq!(manifest_faults("p", package), expected);
    assert_eq!(manifest_faults("p", &other), expected);
    assert_eq!(
        manifest_faults("p", &good.replace("edition", "version")).len(),
        1
    );
}

#[test]
fn a_wrong_code_map_is_found() {
    let exists = |name: &str| name != "dataplane/gone.rs";
    let crates = ["dataplane/wire".to_owned()];
    let check = |text: &str| code_map_faults(text, &crates, exists);
    let good = "# A\n## Code map\n`dataplane/wire/`: messages, `src/lib.rs`.\nInvariant: pure.\n## More\n`dataplane/gone.rs`";
    assert_eq!(check(good), [""; 0]);
    assert_eq!(check("# A"), ["there is no section `## Code map`"]);
    assert_eq!(
        check(&good.replace("src/lib.rs", "dataplane/gone.rs")),
        ["`dataplane/gone.rs` is not there"]
    );
    assert_eq!(
        check(&good.replace("wire/", "wired/")),
        ["the crate `dataplane/wire` is not in the code map"]
    );
    assert_eq!(
        check(&good.replace("Invariant:", "Note:")),
        ["0 lines `Invariant: ...` for 1 crates"]
    );
}
