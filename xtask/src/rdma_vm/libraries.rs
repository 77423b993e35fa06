//! The shared libraries that a program needs to start, according to the loader.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// The paths of the libraries of `program` on this machine. The virtual machine has them at the same paths.
pub(crate) fn of(program: &Path) -> Result<Vec<String>> {
    let output = Command::new("ldd")
        .arg(program)
        // The output is parsed, so it must be in English.
        .env("LC_ALL", "C")
        .output()
        .with_context(|| format!("cannot start `ldd {}`", program.display()))?;
    // For a static program, `ldd` fails and prints no libraries.
    parse(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("`ldd {}`", program.display()))
}

/// The paths in the output of `ldd`.
fn parse(text: &str) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for line in text.lines() {
        if let Some((name, "not found")) = line.trim().split_once(" => ") {
            anyhow::bail!("needs {name}, which is not on this machine");
        }
        paths.extend(line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned));
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_with_and_without_an_arrow() -> Result<()> {
        let text = "\tlinux-vdso.so.1 (0x00007fad862c9000)\n\
                    \tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007fad8619e000)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007fad862cb000)\n";
        let found = parse(text)?;
        assert_eq!(found, ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"]);
        assert!(parse("\tnot a dynamic executable\n")?.is_empty());
        assert!(parse("\tstatically linked\n")?.is_empty());
        Ok(())
    }

    #[test]
    fn a_missing_library_is_named() {
        let missing = parse("\tlibibverbs.so.1 => not found\n").unwrap_err().to_string();
        assert!(missing.contains("libibverbs.so.1"), "{missing}");
    }
}
