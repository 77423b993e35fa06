//! The part of the initramfs that is the same in all runs.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::archive::Archive;
use super::kernel::Kernel;
use super::libraries;
use crate::machine;
use crate::run::{self, command};

/// The first process of the virtual machine.
const INIT: &str = include_str!("init.sh");

/// Programs of this machine that the virtual machine has too, in addition to busybox.
const TOOLS: &[&str] = &[
    "ip",
    "tc",
    "rdma",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ibv_ud_pingpong",
    "ib_write_lat",
    "ib_write_bw",
    "ib_read_lat",
    "ib_send_lat",
    "ib_atomic_lat",
];

/// The provider of rxe, in libibverbs' provider folder, and its configuration file.
const PROVIDER: &str = "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so";
const PROVIDER_NAME: &str = "/etc/libibverbs.d/rxe.driver";

/// Folders that `init` uses as mount points.
const MOUNT_POINTS: &[&str] = &["/dev", "/proc", "/sys", "/tmp", "/root"];

/// The base, as an archive file.
pub(crate) struct Base {
    path: PathBuf,
    content: Content,
}

impl Base {
    /// Returns the base for this kernel and this machine's tools, and builds it unless it is in `kept`.
    pub(crate) fn build(kept: &Path, kernel: &Kernel) -> Result<Base> {
        let content = Content::gather(kernel)?;
        let path = kept.join(format!("base-{:016x}.cpio", content.key()?));
        if !path.is_file() {
            remove_old(kept)?;
            let part = kept.join("base.part");
            fs::write(&part, content.archive()?)
                .with_context(|| format!("cannot write {}", part.display()))?;
            fs::rename(&part, &path)
                .with_context(|| format!("cannot rename to {}", path.display()))?;
        }
        Ok(Base { path, content })
    }

    /// Whether it contains the file `path`.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.content.files.iter().any(|(there, _)| there == path)
    }

    /// Writes the base followed by `extra` to `initrd`: the kernel unpacks both.
    pub(crate) fn append(&self, extra: &[u8], initrd: &Path) -> Result<()> {
        let write = || -> io::Result<()> {
            let mut file = File::create(initrd)?;
            io::copy(&mut File::open(&self.path)?, &mut file)?;
            file.write_all(extra)
        };
        write().with_context(|| format!("cannot write {}", initrd.display()))
    }
}

fn remove_old(kept: &Path) -> Result<()> {
    for entry in fs::read_dir(kept).with_context(|| format!("cannot list {}", kept.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("base-") {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// The content of the base.
struct Content {
    /// Path in the virtual machine, and file on this machine.
    files: Vec<(String, PathBuf)>,
    /// Names under which busybox is linked.
    applets: Vec<String>,
    modules: Vec<PathBuf>,
}

impl Content {
    fn gather(kernel: &Kernel) -> Result<Content> {
        let busybox = machine::program("busybox")?;
        let applets = run::output(command(&busybox).arg("--list"))?;
        let mut files = Vec::new();
        let mut needed = Vec::new();
        for tool in TOOLS {
            let path = machine::program(tool)?;
            needed.extend(libraries::of(&path)?);
            files.push((format!("/bin/{tool}"), path));
        }
        needed.extend(libraries::of(Path::new(PROVIDER))?);
        needed.sort_unstable();
        needed.dedup();
        let same_path = needed.into_iter().chain([PROVIDER.into(), PROVIDER_NAME.into()]);
        files.extend(same_path.map(|path| (path.clone(), path.into())));
        files.push(("/bin/busybox".into(), busybox));
        let applets = applets
            .lines()
            .filter(|name| *name != "busybox" && !TOOLS.contains(name))
            .map(str::to_owned)
            .collect();
        Ok(Content { files, applets, modules: kernel.modules.clone() })
    }

    /// A key that changes whenever the archive would.
    fn key(&self) -> Result<u64> {
        let mut hasher = DefaultHasher::new();
        INIT.hash(&mut hasher);
        self.applets.hash(&mut hasher);
        let files = self.files.iter().map(|(there, here)| (there.as_str(), here));
        let modules = self.modules.iter().map(|here| ("module", here));
        for (there, here) in files.chain(modules) {
            let metadata =
                fs::metadata(here).with_context(|| format!("cannot read {}", here.display()))?;
            (there, here, metadata.len(), metadata.mtime(), metadata.mtime_nsec())
                .hash(&mut hasher);
        }
        Ok(hasher.finish())
    }

    fn archive(&self) -> Result<Vec<u8>> {
        let mut archive = Archive::new();
        MOUNT_POINTS.iter().for_each(|path| archive.folder(path));
        // The kernel opens it for `init` before anything is mounted.
        archive.character_device("/dev/console", 5, 1);
        archive.file("/init", 0o755, INIT.as_bytes());
        for (there, here) in &self.files {
            let content =
                fs::read(here).with_context(|| format!("cannot read {}", here.display()))?;
            archive.file(there, 0o755, &content);
        }
        for applet in &self.applets {
            archive.link(&format!("/bin/{applet}"), "busybox");
        }
        let mut order = String::new();
        for module in &self.modules {
            let (name, content) = unpacked(module)?;
            archive.file(&format!("/modules/{name}"), 0o644, &content);
            order.push_str(&name);
            order.push('\n');
        }
        archive.file("/modules/order", 0o644, order.as_bytes());
        Ok(archive.finish())
    }
}

/// The name and content of a module, decompressed for busybox.
fn unpacked(module: &Path) -> Result<(String, Vec<u8>)> {
    let name = module.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(name) = name.strip_suffix(".xz") else {
        let content =
            fs::read(module).with_context(|| format!("cannot read {}", module.display()))?;
        return Ok((name.to_owned(), content));
    };
    let output = command("xz")
        .args(["--decompress", "--stdout"])
        .arg(module)
        .output()
        .context("cannot start `xz`")?;
    if !output.status.success() {
        anyhow::bail!("`xz` cannot unpack {}: {}", module.display(), output.status);
    }
    Ok((name.to_owned(), output.stdout))
}
