//! The archive that the kernel unpacks into its initial file system: cpio, format `newc`.
//!
//! It is written here because the system's `cpio` needs root for device files. The kernel accepts any number
//! of such archives, one after the other.

use std::collections::BTreeSet;
use std::path::Path;

/// Bits of `mode` for the file type, as in `<sys/stat.h>`.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

/// Everything in an archive is aligned to this.
const ALIGNMENT: usize = 4;

/// An archive being written.
pub(crate) struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    pub(crate) fn new() -> Archive {
        Archive { bytes: Vec::new(), folders: BTreeSet::new(), entries: 0 }
    }

    /// Adds the folder `path` (absolute) and all its parents.
    pub(crate) fn folder(&mut self, path: &str) {
        if path == "/" || self.folders.contains(path) {
            return;
        }
        self.parents(path);
        self.folders.insert(path.to_owned());
        self.entry(path, DIRECTORY | 0o755, (0, 0), &[]);
    }

    pub(crate) fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.parents(path);
        self.entry(path, REGULAR | permissions, (0, 0), content);
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.entry(path, LINK | 0o777, (0, 0), target.as_bytes());
    }

    pub(crate) fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.parents(path);
        self.entry(path, CHARACTER | 0o600, (major, minor), &[]);
    }

    /// Finishes the archive; another may follow it.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("/TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        if let Some(parent) = Path::new(path).parent().and_then(Path::to_str) {
            self.folder(parent);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        assert!(path.starts_with('/'), "paths in an archive are absolute here: {path}");
        let name = &path[1..];
        self.entries += 1;
        let length = u32::try_from(content.len()).expect("no file of this project has 4 GiB");
        let fields = [
            self.entries, // inode
            mode,
            0, // user
            0, // group
            1, // links
            0, // modification time: none, so that equal content gives equal archives
            length,
            0, // device that holds the file
            0,
            device.0,
            device.1,
            name.len() as u32 + 1,
            0, // checksum: none in this format
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, mode and content of each entry, parsed independently.
    fn read(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        while !bytes.is_empty() {
            assert_eq!(&bytes[..6], b"070701");
            let field = |index: usize| {
                let start = 6 + 8 * index;
                let text = std::str::from_utf8(&bytes[start..start + 8]).expect("digits");
                usize::from_str_radix(text, 16).expect("digits")
            };
            let (mode, length, name_length) = (field(1), field(6), field(11));
            let name = &bytes[110..110 + name_length];
            let (zero, name) = name.split_last().expect("a name ends with 0");
            assert_eq!(*zero, 0);
            let start = (110 + name_length).next_multiple_of(4);
            entries.push((
                String::from_utf8(name.to_vec()).expect("a name"),
                mode as u32,
                bytes[start..start + length].to_vec(),
            ));
            bytes = &bytes[(start + length).next_multiple_of(4)..];
        }
        entries
    }

    #[test]
    fn folders_appear_once_and_before_their_content() {
        let mut archive = Archive::new();
        archive.file("/usr/lib/a.so", 0o644, b"a");
        archive.link("/usr/lib/b.so", "a.so");
        archive.folder("/usr");
        let entries = read(&archive.finish());
        let names: Vec<&str> = entries.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["usr", "usr/lib", "usr/lib/a.so", "usr/lib/b.so", "TRAILER!!!"]);
    }

    #[test]
    fn content_and_mode_are_preserved() {
        let mut archive = Archive::new();
        archive.file("/three", 0o755, b"xyz");
        archive.link("/link", "three");
        archive.character_device("/dev/console", 5, 1);
        let bytes = archive.finish();
        assert_eq!(bytes.len() % ALIGNMENT, 0);
        let entries = read(&bytes);
        assert_eq!(entries[0], ("three".into(), 0o100_755, b"xyz".to_vec()));
        assert_eq!(entries[1], ("link".into(), 0o120_777, b"three".to_vec()));
        assert_eq!(entries[3].1, 0o020_600);
    }

    #[test]
    fn archives_can_be_concatenated() {
        let mut first = Archive::new();
        first.file("/a", 0o644, b"1");
        let mut second = Archive::new();
        second.file("/a", 0o644, b"22");
        let mut both = first.finish();
        both.extend(second.finish());
        assert_eq!(read(&both).len(), 4);
    }
}
