//! The hash of shapes, computed by the compiler.

/// FNV-1a. Its values are compared between programs that were built at different times, so it cannot change.
#[derive(Clone, Copy)]
pub(super) struct Hasher(u64);

impl Hasher {
    /// Starts with what kind of thing is hashed.
    pub(super) const fn new(kind: &str) -> Self {
        Hasher(0xcbf2_9ce4_8422_2325).text(kind)
    }

    const fn byte(self, byte: u8) -> Self {
        Hasher((self.0 ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3))
    }

    /// Adds a string and its end.
    pub(super) const fn text(mut self, text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            self = self.byte(bytes[at]);
            at += 1;
        }
        // No string in UTF-8 has this byte.
        self.byte(0xff)
    }

    /// Adds a number.
    pub(super) const fn number(mut self, number: u64) -> Self {
        let bytes = number.to_le_bytes();
        let mut at = 0;
        while at < bytes.len() {
            self = self.byte(bytes[at]);
            at += 1;
        }
        self
    }

    pub(super) const fn finish(self) -> u64 {
        self.0
    }
}
