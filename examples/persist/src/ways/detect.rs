//! What this machine's system says of its persistence domain.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::machine::Domain;

/// The persistence domain of files in a directory, and from what it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What survives a power cut.
    pub domain: Domain,
    /// What the system says, a line for each fact.
    pub facts: Vec<String>,
}

/// Finds out what survives a power cut of files in a directory: those on a file system that maps persistent memory (`dax`) are in its domain, all
/// others need `fdatasync`. Whether DDIO is on for a NIC cannot be read; it is taken to be on, as is the default.
///
/// # Errors
///
/// The directory, or the list of mounts, cannot be read.
pub fn detect(dir: &Path) -> io::Result<Found> {
    let system = System {
        mounts: "/proc/self/mounts".into(),
        regions: "/sys/bus/nd/devices".into(),
        devices: "/sys/bus/dax/devices".into(),
    };
    system.detect(&dir.canonicalize()?)
}

/// Where the system tells of mounts and persistent memory.
struct System {
    mounts: PathBuf,
    /// Of the `libnvdimm` bus: `regionN/persistence_domain`.
    regions: PathBuf,
    /// Of device DAX.
    devices: PathBuf,
}

impl System {
    fn detect(&self, dir: &Path) -> io::Result<Found> {
        let mut facts = Vec::new();
        let region = self.region(&mut facts);
        let devices = names(&self.devices, "dax");
        if !devices.is_empty() {
            facts.push(format!("persistent memory as a device: {}", devices.join(", ")));
        }
        let mounts = fs::read_to_string(&self.mounts)?;
        let Some(mount) = Mount::of(dir, &mounts) else {
            facts.push(format!("no mount contains {}", dir.display()));
            return Ok(Found { domain: Domain::File, facts });
        };
        let dir = dir.display();
        if !mount.is_dax {
            facts
                .push(format!("{dir} is on {}, without dax: a file in the page cache", mount.kind));
            if mount.kind == "tmpfs" {
                facts.push(
                    "tmpfs is in memory: nothing there survives a power cut, synced or not"
                        .to_owned(),
                );
            }
            return Ok(Found { domain: Domain::File, facts });
        }
        facts.push(format!("{dir} is on {}, mounted with dax: persistent memory", mount.kind));
        if region == Domain::AdrDdioOn {
            facts.push(
                "whether DDIO is on cannot be read; it is unless somebody turned it off".to_owned(),
            );
        }
        Ok(Found { domain: region, facts })
    }

    /// The weakest domain of all regions of persistent memory.
    fn region(&self, facts: &mut Vec<String>) -> Domain {
        let regions = names(&self.regions, "region");
        if regions.is_empty() {
            facts.push("no persistent memory on the nd bus".to_owned());
        }
        let mut has_caches = !regions.is_empty();
        for region in regions {
            let path = self.regions.join(&region).join("persistence_domain");
            let says = fs::read_to_string(path).unwrap_or_default();
            let says = says.trim();
            facts.push(format!("{region}: persistence domain {says:?}"));
            has_caches &= says == "cpu_cache";
        }
        if has_caches { Domain::Eadr } else { Domain::AdrDdioOn }
    }
}

/// The names in a directory that begin so, sorted; none if it cannot be read.
fn names(dir: &Path, begin: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(begin)).collect();
    names.sort();
    names
}

struct Mount<'a> {
    kind: &'a str,
    is_dax: bool,
}

impl<'a> Mount<'a> {
    /// The mount that contains a directory: of those whose point is above it, the deepest, and of these the last.
    fn of(dir: &Path, mounts: &'a str) -> Option<Mount<'a>> {
        let lines = mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            // Spaces are escaped, as are backslashes.
            let point = PathBuf::from(point.replace("\\040", " ").replace("\\134", "\\"));
            let is_dax = options.split(',').any(|it| it == "dax" || it == "dax=always");
            dir.starts_with(&point).then(|| (point.components().count(), Mount { kind, is_dax }))
        });
        lines.max_by_key(|(depth, _)| *depth).map(|(_, mount)| mount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "/dev/sda / ext4 rw,relatime 0 0\n\
        tmpfs /tmp tmpfs rw 0 0\n\
        /dev/pmem0 /srv/my\\040memory ext4 rw,dax=always 0 0\n";

    fn system(root: &Path, domains: &[&str]) -> System {
        let (mounts, regions) = (root.join("mounts"), root.join("nd"));
        fs::write(&mounts, MOUNTS).unwrap();
        for (number, domain) in domains.iter().enumerate() {
            let region = regions.join(format!("region{number}"));
            fs::create_dir_all(&region).unwrap();
            fs::write(region.join("persistence_domain"), format!("{domain}\n")).unwrap();
        }
        System { mounts, regions, devices: root.join("dax") }
    }

    #[test]
    fn a_file_needs_fdatasync_and_a_dax_mount_has_the_domain_of_its_memory() {
        for (dir, domains, domain) in [
            ("/srv/log", &["cpu_cache"][..], Domain::File),
            ("/tmp/log", &[], Domain::File),
            ("/srv/my memory/log", &["cpu_cache"], Domain::Eadr),
            ("/srv/my memory/log", &["memory_controller"], Domain::AdrDdioOn),
            ("/srv/my memory", &["cpu_cache", "memory_controller"], Domain::AdrDdioOn),
            // Nothing is known of it: what survives least.
            ("/srv/my memory", &[], Domain::AdrDdioOn),
        ] {
            let root = tempfile::tempdir().unwrap();
            let found = system(root.path(), domains).detect(Path::new(dir)).unwrap();
            assert_eq!(found.domain, domain, "{dir}, {domains:?}: {:?}", found.facts);
        }
    }

    #[test]
    fn this_machine_is_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let found = detect(dir.path()).unwrap();
        assert!(!found.facts.is_empty(), "{found:?}");
    }
}
