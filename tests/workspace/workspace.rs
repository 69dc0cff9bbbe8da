//! The rules of the workspace: direction of dependencies, places of `unsafe`, licences, folders, the
//! lint table, and the code map. Each rule is a function over plain values that returns the faults, so
//! that its own tests show that it can fail; the tests here apply it to the repository.

mod edges;
mod layout;
mod licences;
mod unsafe_code;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{CargoOpt, Metadata, MetadataCommand, Package, TargetKind};

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the workspace's root")
}

/// What cargo knows, of the crates that are built on this kind of machine.
fn metadata() -> Metadata {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let options = ["--offline", "--filter-platform", &platform];
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .features(CargoOpt::AllFeatures)
        .other_options(options.map(String::from))
        .exec()
        .expect("cargo metadata (after `cargo fetch`, since it is not to use the network)")
}

/// A package's folder from the root on, with `/`.
fn folder(package: &Package) -> String {
    let folder = package.manifest_path.parent().expect("a folder");
    let folder = folder.as_std_path().strip_prefix(root());
    folder.expect("inside the root").display().to_string()
}

fn assert_none(faults: &[String], rule: &str) {
    assert!(faults.is_empty(), "{rule}:\n  {}", faults.join("\n  "));
}

/// All files under a folder whose names end so, but for build outputs.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        if path.is_dir() && !matches!(name, "target" | ".git") {
            found.extend(files(&path, ending));
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
    found
}

fn relative(path: &Path) -> String {
    let path = path.strip_prefix(root()).expect("inside the root");
    path.display().to_string()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn dependencies_follow_the_data() {
    let metadata = metadata();
    let packages: Vec<edges::Crate> = metadata
        .workspace_packages()
        .into_iter()
        .map(|package| edges::Crate {
            name: package.name.to_string(),
            folder: folder(package),
            depends_on: package
                .dependencies
                .iter()
                .filter(|dependency| dependency.path.is_some())
                .map(|dependency| dependency.name.clone())
                .collect(),
        })
        .collect();
    assert_none(
        &edges::faults(&packages),
        "edges are those of DESIGN.md section 11; a new one is a change of design",
    );
}

#[test]
fn unsafe_stays_in_its_places() {
    let mut faults = Vec::new();
    for path in files(&root(), ".rs") {
        faults.extend(unsafe_code::source_faults(&relative(&path), &read(&path)));
    }
    for package in metadata().workspace_packages() {
        let product = |kind: &TargetKind| matches!(kind, TargetKind::Lib | TargetKind::Bin);
        for target in package
            .targets
            .iter()
            .filter(|t| t.kind.iter().any(product))
        {
            let path = target.src_path.as_std_path();
            faults.extend(unsafe_code::root_faults(&relative(path), &read(path)));
        }
    }
    assert_none(&faults, "unsafe is rationed (DESIGN.md section 11)");
}

#[test]
fn licences_are_allowed() {
    let metadata = metadata();
    let resolved = metadata.resolve.as_ref().expect("a resolved graph");
    let used: HashSet<_> = resolved.nodes.iter().map(|node| &node.id).collect();
    let packages: Vec<_> = metadata
        .packages
        .iter()
        .filter(|p| used.contains(&p.id))
        .collect();
    assert!(packages.len() > metadata.workspace_packages().len());
    let faults: Vec<String> = packages
        .iter()
        .filter_map(|p| {
            let text = p.license_file().map(|file| read(file.as_std_path()));
            let by_text = || {
                let version = p.version.to_string();
                licences::named_by_text(&p.name, &version, text.as_deref()?)
            };
            licences::fault(&p.name, p.license.as_deref().or_else(by_text))
        })
        .collect();
    assert_none(&faults, "licences are those of licences::ALLOWED");
}

#[test]
fn folders_at_the_root_are_known() {
    let entries = fs::read_dir(root()).expect("the root is readable");
    let folders = entries
        .map(|entry| entry.expect("a readable entry"))
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    assert_none(
        &layout::folder_faults(folders),
        "the root has the folders of DESIGN.md section 2",
    );
}

#[test]
fn every_crate_uses_the_lint_table() {
    let mut faults = Vec::new();
    for package in metadata().workspace_packages() {
        let path = package.manifest_path.as_std_path();
        faults.extend(layout::manifest_faults(&relative(path), &read(path)));
    }
    assert_none(&faults, "lints are set in one place");
}

#[test]
fn the_code_map_is_true() {
    let path = root().join("ARCHITECTURE.md");
    if !path.exists() {
        println!("skipped: there is no ARCHITECTURE.md");
        return;
    }
    let folders: Vec<String> = metadata()
        .workspace_packages()
        .into_iter()
        .map(folder)
        .collect();
    let faults = layout::code_map_faults(&read(&path), &folders, |file| root().join(file).exists());
    assert_none(&faults, "ARCHITECTURE.md names what is there");
}
