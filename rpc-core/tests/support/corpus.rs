//! The corpora of fuzz targets, kept in the tree where bolero looks for them: `cargo test` and `cargo xtask fuzz` run each
//! target on its corpus before anything else.

use std::path::Path;

/// Set to write the well-formed inputs instead of comparing them.
const WRITE: &str = "FARCALL_WRITE_CORPUS";

/// Asserts that the corpus of a target has these well-formed inputs as they are written today. It may have others: what fuzzing
/// has found.
///
/// `folder` is that of the target's file, from the package's own folder on, and `target` its path in the crate.
#[track_caller]
pub fn is_kept(folder: &str, target: &str, inputs: impl IntoIterator<Item = (String, Vec<u8>)>) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let corpus = package.join(folder).join("__fuzz__").join(target.replace("::", "__"));
    let corpus = corpus.join("corpus");
    for (name, bytes) in inputs {
        let file = corpus.join(name);
        if std::env::var_os(WRITE).is_some() {
            std::fs::create_dir_all(&corpus).expect("a folder for the corpus");
            std::fs::write(&file, &bytes).expect("an input is written");
        }
        let kept = std::fs::read(&file).unwrap_or_default();
        let is_kept = kept == bytes;
        assert!(
            is_kept,
            "{} is out of date: run `cargo xtask fuzz --write-corpus`",
            file.display()
        );
    }
}
