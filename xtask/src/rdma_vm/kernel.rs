//! The kernel of the virtual machine, from Debian's package. The running kernel does not matter.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::machine;
use crate::run::{self, command};

/// Packages that depend on a kernel with rxe, best first: a newer kernel for Debian 12, or else the release's
/// own.
const PACKAGES: &[&str] = &["linux-image-6.12-amd64", "linux-image-amd64"];

/// Without `crc32_generic`, `rdma link add` fails with just "No such file or directory".
const MODULES: &[&str] = &[
    "crc32_generic",
    "virtio_net",
    "dummy",
    "veth",
    "ib_umad",
    "rdma_ucm",
    "rdma_rxe",
    // Loss, delay, duplication and reordering of packets.
    "sch_netem",
    "sch_prio",
    "cls_u32",
];

/// An unpacked kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) image: PathBuf,
    /// The modules in the order in which they are loaded.
    pub(crate) modules: Vec<PathBuf>,
}

/// Returns the kernel in `kept`, and downloads it if necessary.
pub(crate) fn fetch(kept: &Path) -> Result<Kernel> {
    let folder = kept.join("kernel");
    if !folder.exists() {
        // Unpacked into another folder and renamed, so that a partially unpacked kernel is never used.
        let unpacked = kept.join("kernel.part");
        download(&unpacked)?;
        fs::rename(&unpacked, &folder)
            .with_context(|| format!("cannot rename to {}", folder.display()))?;
    }
    open(&folder).with_context(|| {
        format!("{} is damaged; remove it, and it is downloaded again", folder.display())
    })
}

fn download(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let package = match newest() {
        Some(package) => package,
        None => {
            machine::update_package_lists()?;
            newest().with_context(|| {
                format!("apt knows no kernel package of these: {}", PACKAGES.join(", "))
            })?
        }
    };
    println!("  downloading the kernel of the virtual machine, once: {package}");
    run::run(command("apt-get").args(["download", &package]).current_dir(folder))?;
    let archive = only(folder, |name| name.ends_with(".deb"))?;
    run::run(command("dpkg-deb").arg("-x").arg(&archive).arg(folder))?;
    fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))?;
    run::run(command("depmod").arg("-b").arg(folder).arg(version(folder)?))
}

/// The package of the kernel image, whose name contains the version.
fn newest() -> Option<String> {
    PACKAGES.iter().find_map(|package| {
        let depends =
            run::output(command("apt-cache").args(["depends", package]).env("LC_ALL", "C")).ok()?;
        image_package(&depends)
    })
}

/// The kernel image in the output of `apt-cache depends`.
fn image_package(depends: &str) -> Option<String> {
    depends.lines().find_map(|line| {
        let package = line.trim().strip_prefix("Depends: ")?;
        package.starts_with("linux-image-").then(|| package.to_owned())
    })
}

fn open(folder: &Path) -> Result<Kernel> {
    let version = version(folder)?;
    let image = folder.join("boot").join(format!("vmlinuz-{version}"));
    if !image.is_file() {
        bail!("there is no {}", image.display());
    }
    let mut modules: Vec<PathBuf> = Vec::new();
    for module in MODULES {
        // This machine's module options must not apply to the virtual machine.
        let mut modprobe = command("modprobe");
        modprobe.args(["--config", "/dev/null", "--set-version", &version]);
        modprobe.arg("--dirname").arg(folder).args(["--show-depends", module]);
        let shown = run::output(&mut modprobe)?;
        for path in insmod_paths(&shown) {
            if !modules.contains(&path) {
                modules.push(path);
            }
        }
    }
    Ok(Kernel { image, modules })
}

/// The files in the output of `modprobe --show-depends`. Modules that are built into the kernel have none.
fn insmod_paths(shown: &str) -> impl Iterator<Item = PathBuf> {
    shown
        .lines()
        .filter_map(|line| line.strip_prefix("insmod "))
        .map(|path| PathBuf::from(path.trim()))
}

fn version(folder: &Path) -> Result<String> {
    let path = only(&folder.join("lib/modules"), |_| true)?;
    match path.file_name().and_then(|name| name.to_str()) {
        Some(version) => Ok(version.to_owned()),
        None => bail!("{} has no name", path.display()),
    }
}

/// The only entry of `folder` for which `fits` is true.
fn only(folder: &Path, fits: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut found = None;
    for entry in entries {
        let path = entry.with_context(|| format!("cannot list {}", folder.display()))?.path();
        let named = path.file_name().and_then(|name| name.to_str()).is_some_and(&fits);
        if named && found.replace(path).is_some() {
            bail!("{} holds more than the one entry expected", folder.display());
        }
    }
    found.with_context(|| format!("{} lacks the one entry expected", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_with_the_kernel_is_found_among_dependencies() {
        let depends = "linux-image-6.12-amd64\n  Depends: linux-image-6.12.1+deb12-amd64\n";
        assert_eq!(image_package(depends).as_deref(), Some("linux-image-6.12.1+deb12-amd64"));
        assert_eq!(image_package("linux-image-6.12-amd64\n"), None);
        assert_eq!(image_package("x\n  Depends: libc6\n"), None);
    }

    #[test]
    fn modules_built_into_the_kernel_have_no_file() {
        let shown = "insmod /k/crc32.ko.xz \nbuiltin libcrc32c\ninsmod /k/rdma_rxe.ko.xz \n";
        let paths: Vec<PathBuf> = insmod_paths(shown).collect();
        assert_eq!(paths, [Path::new("/k/crc32.ko.xz"), Path::new("/k/rdma_rxe.ko.xz")]);
    }
}
