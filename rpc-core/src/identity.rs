//! Who a client is: identities, the keys that prove them, and which services they may use.

use core::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

/// Longest name of an identity, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// Shortest secret, in bytes: 128 bits cannot be guessed.
pub const MIN_SECRET_BYTES: usize = 16;

/// Longest secret, in bytes. HMAC hashes longer ones than 64 bytes first, so they add nothing.
pub const MAX_SECRET_BYTES: usize = 4096;

/// Most secrets that a server may have under one name: the current one, and others while it is being replaced.
pub const MAX_SECRETS_OF_A_NAME: usize = 4;

/// Most keys of one server.
const MAX_KEYS: usize = 4096;

/// Who a client has proven to be: the name of its key, or that in its certificate.
///
/// A clone is a reference to the same name, which allocates nothing. Each connection has a name of its own, which is freed with the
/// connection and the last clone: a process may meet any number of identities.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(Arc<str>);

impl Identity {
    /// The identity of this name.
    #[doc(hidden)]
    pub fn named(name: &str) -> Identity {
        Identity(name.into())
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Both are clones of one.
    pub(crate) fn is_same_clone(&self, other: &Identity) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:?})", self.name())
    }
}

/// A name, and a secret that client and server share: proves to each that the other has it, and is never sent.
///
/// `Debug` prints the name only.
#[derive(Clone)]
pub struct Key {
    parts: Arc<Parts>,
    /// The name of the only server that a client with this key connects to.
    server: Option<Arc<str>>,
}

struct Parts {
    name: String,
    secret: Vec<u8>,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The name is empty or too long.
    #[error("the name of a key has {len} bytes; 1 to {MAX_NAME_BYTES} are possible")]
    Name {
        /// Bytes of the name.
        len: usize,
    },
    /// The name of the server is empty or too long.
    #[error("the name of a server has {len} bytes; 1 to {MAX_NAME_BYTES} are possible")]
    ServerName {
        /// Bytes of the name.
        len: usize,
    },
    /// The secret is too short or too long.
    #[error(
        "the secret of a key has {len} bytes; {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} are possible, from a source of random bytes"
    )]
    Secret {
        /// Bytes of the secret, or one more than the most.
        len: usize,
    },
    /// The file with the secret cannot be read.
    #[error("the key file {path}: {cause}")]
    File {
        /// The path.
        path: String,
        /// The system's error. Not a source: the message above says it already.
        cause: io::Error,
    },
}

impl Key {
    /// A key of this name, of 1 to 255 bytes, with this secret, of 16 to 4096 bytes.
    ///
    /// The secret is to be random: an attacker who has recorded one handshake can try passwords, but not 128 random bits.
    ///
    /// # Errors
    /// [`KeyError::Name`], [`KeyError::Secret`].
    pub fn new(name: impl Into<String>, secret: impl Into<Vec<u8>>) -> Result<Key, KeyError> {
        let (name, secret) = (name.into(), secret.into());
        if !is_name(&name) {
            return Err(KeyError::Name { len: name.len() });
        }
        if !(MIN_SECRET_BYTES..=MAX_SECRET_BYTES).contains(&secret.len()) {
            return Err(KeyError::Secret { len: secret.len() });
        }
        Ok(Key { parts: Arc::new(Parts { name, secret }), server: None })
    }

    /// A key of this name with the bytes of a file, without a line end at their end. Give both ends the same file.
    ///
    /// # Errors
    /// [`KeyError::File`], and those of [`new`](Self::new).
    pub fn from_file(name: impl Into<String>, path: impl AsRef<Path>) -> Result<Key, KeyError> {
        let path = path.as_ref();
        let mut secret = Vec::new();
        // Two bytes of a line end, and one that shows that there are too many.
        let most = MAX_SECRET_BYTES as u64 + 3;
        std::fs::File::open(path)
            .and_then(|file| file.take(most).read_to_end(&mut secret))
            .map_err(|cause| KeyError::File { path: path.display().to_string(), cause })?;
        if secret.last() == Some(&b'\n') {
            secret.pop();
            if secret.last() == Some(&b'\r') {
                secret.pop();
            }
        }
        Key::new(name, secret)
    }

    /// This key for a client that connects to the server of this name only: see [`Authentication::server_name`]. A key alone does
    /// not tell servers apart that all have it. At a server this has no effect.
    ///
    /// # Errors
    /// [`KeyError::ServerName`].
    pub fn for_server(self, name: impl Into<String>) -> Result<Key, KeyError> {
        let name = name.into();
        if !is_name(&name) {
            return Err(KeyError::ServerName { len: name.len() });
        }
        Ok(Key { server: Some(name.into()), ..self })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// The name of the only server that a client with this key connects to.
    #[doc(hidden)]
    pub fn server_name(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// The secret, for the handshake.
    #[doc(hidden)]
    pub fn secret(&self) -> &[u8] {
        &self.parts.secret
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut key = f.debug_struct("Key");
        key.field("name", &self.name());
        if let Some(server) = &self.server {
            key.field("server", server);
        }
        key.finish_non_exhaustive()
    }
}

/// Whether a key or a server may have this name.
fn is_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
}

type Permit = Arc<dyn Fn(&Identity, &str) -> bool + Send + Sync>;

/// Whom a server lets in: clients that prove that they have one of its keys, and as far as it permits.
///
/// `Debug` prints the names of the keys only.
#[derive(Clone, Default)]
pub struct Authentication {
    keys: Vec<Key>,
    server_name: Option<Arc<str>>,
    permit: Option<Permit>,
}

impl Authentication {
    /// Lets nobody in so far.
    pub fn new() -> Authentication {
        Authentication::default()
    }

    /// Lets clients with this key in. Up to four keys may have one name and different secrets, so that a secret can be
    /// replaced: give the servers the new one too, then the clients, then take the old one from the servers.
    pub fn key(mut self, key: Key) -> Self {
        self.keys.push(key);
        self
    }

    /// The server's own name, for clients that want no other server that has their key: [`Key::for_server`]. They are refused by a server of
    /// another name or of none. Other clients do not ask for it.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into().into());
        self
    }

    /// The server's own name, if it has one.
    #[doc(hidden)]
    pub fn name_of_server(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// Asks this function for each client that has proven who it is: may this identity use the service of this name?
    /// Default: any.
    ///
    /// It is called on the thread of the client's handshake, and counts towards the time of that. It is asked for built-in
    /// services too, such as `farcall.ping`. Of a connection of several services it is asked for each, and who may not use one of them
    /// is not connected. Calls of services that the client has not named fail, as if the server had no such method.
    pub fn permit(
        mut self,
        permit: impl Fn(&Identity, &str) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.permit = Some(Arc::new(permit));
        self
    }

    /// The keys of this name.
    #[doc(hidden)]
    pub fn keys_of(&self, name: &str) -> impl Iterator<Item = &Key> {
        self.keys.iter().filter(move |key| key.name() == name)
    }

    /// Whether this identity may use the service of this name.
    #[doc(hidden)]
    pub fn permits(&self, identity: &Identity, service: &str) -> bool {
        self.permit.as_ref().is_none_or(|permit| permit(identity, service))
    }

    /// Whether some services are not for all.
    #[doc(hidden)]
    pub fn has_permits(&self) -> bool {
        self.permit.is_some()
    }

    /// Whether clients are to prove that they have a key.
    #[doc(hidden)]
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// What is wrong with the keys, if something is. `is_identified`: clients show certificates too.
    pub(crate) fn problem(&self, is_identified: bool) -> Option<String> {
        if self.keys.is_empty() && !is_identified {
            return Some(
                "it has no key, so that no client could connect; add one with Authentication::key, or ask clients for \
                 certificates with ServerBuilder::tls"
                    .into(),
            );
        }
        if let Some(name) = &self.server_name {
            if self.keys.is_empty() {
                return Some(
                    "it has a server_name and no key to prove it with; add one with Authentication::key, or leave the name to the \
                     server's certificate"
                        .into(),
                );
            }
            if !is_name(name) {
                let len = name.len();
                return Some(format!(
                    "its server_name has {len} bytes; 1 to {MAX_NAME_BYTES} are possible"
                ));
            }
        }
        if self.keys.len() > MAX_KEYS {
            return Some(format!("it has {} keys; {MAX_KEYS} are the most", self.keys.len()));
        }
        let too_many = |key: &&Key| self.keys_of(key.name()).count() > MAX_SECRETS_OF_A_NAME;
        let key = self.keys.iter().find(too_many)?;
        let name = key.name();
        Some(format!("more than {MAX_SECRETS_OF_A_NAME} of its keys are named {name:?}"))
    }
}

impl fmt::Debug for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authentication").field("keys", &self.keys).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; 16] = *b"0123456789abcdef";

    #[test]
    fn nothing_prints_a_secret() {
        let key = Key::new("billing", SECRET).unwrap();
        let authentication = Authentication::new().key(key.clone());
        let printed = format!("{key:?} {authentication:?} {:?}", Arc::new(key.clone()));
        assert!(printed.contains("billing"), "{printed}");
        assert!(!printed.contains("0123") && !printed.contains("48, 49"), "{printed}");
    }

    #[test]
    fn clients_prove_a_key_only_where_there_is_one() {
        assert!(!Authentication::new().has_keys());
        assert!(Authentication::new().key(Key::new("billing", SECRET).unwrap()).has_keys());
    }

    #[test]
    fn names_and_secrets_have_bounds() {
        assert!(matches!(Key::new("", SECRET), Err(KeyError::Name { len: 0 })));
        assert!(matches!(Key::new("n".repeat(256), SECRET), Err(KeyError::Name { len: 256 })));
        assert!(matches!(Key::new("n", [1; 15]), Err(KeyError::Secret { len: 15 })));
        assert!(matches!(Key::new("n", [1; 4097]), Err(KeyError::Secret { len: 4097 })));
        assert!(Key::new("n".repeat(255), [1; 4096]).is_ok());
        let key = Key::new("n", SECRET).unwrap();
        assert_eq!(key.server_name(), None);
        assert_eq!(key.clone().for_server("eu-1").unwrap().server_name(), Some("eu-1"));
        for len in [0, 256] {
            let refused = key.clone().for_server("n".repeat(len));
            assert!(matches!(refused, Err(KeyError::ServerName { len: told }) if told == len));
        }
    }

    #[test]
    fn a_key_file_may_end_in_a_line_end() {
        let path = std::env::temp_dir().join(format!("farcall-key-{}", std::process::id()));
        for (content, secret) in [
            (&b"0123456789abcdef"[..], Some(&SECRET[..])),
            (b"0123456789abcdef\n", Some(&SECRET)),
            (b"0123456789abcdef\r\n", Some(&SECRET)),
            (b"0123456789abcde\n", None),
            (&[7; 5000], None),
        ] {
            std::fs::write(&path, content).unwrap();
            let key = Key::from_file("n", &path).ok();
            assert_eq!(key.as_ref().map(Key::secret), secret, "{content:?}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Key::from_file("n", &path), Err(KeyError::File { .. })));
    }

    #[test]
    fn identities_of_one_name_are_equal() {
        let (one, same) = (Identity::named("a"), Identity::named("a"));
        assert_eq!(one, same);
        assert_ne!(one, Identity::named("b"));
        assert_eq!(one.name(), "a");
        assert!(one.is_same_clone(&one.clone()) && !one.is_same_clone(&same));
    }

    #[test]
    fn a_name_is_freed_with_its_last_clone() {
        let identity = Identity::named("a");
        let name = Arc::downgrade(&identity.0);
        let clone = identity.clone();
        drop(identity);
        assert_eq!(name.upgrade().as_deref(), Some("a"));
        drop(clone);
        assert!(name.upgrade().is_none());
    }

    #[test]
    fn an_authentication_that_cannot_work_says_why() {
        let key = |name: &str, byte| Key::new(name, [byte; 16]).unwrap();
        assert!(Authentication::new().problem(false).unwrap().contains("no key"));
        assert_eq!(Authentication::new().problem(true), None);
        let unnamed = Authentication::new().key(key("a", 1)).server_name("");
        assert!(unnamed.problem(false).unwrap().contains("its server_name has 0 bytes"));
        let long = Authentication::new().key(key("a", 1)).server_name("n".repeat(256));
        assert!(long.problem(false).unwrap().contains("its server_name has 256 bytes"));
        let keyless = Authentication::new().server_name("eu-1");
        assert!(keyless.problem(true).unwrap().contains("no key to prove it with"));
        assert_eq!(keyless.key(key("a", 1)).problem(false), None);
        let four = (0..4).fold(Authentication::new(), |all, byte| all.key(key("a", byte)));
        assert_eq!(four.problem(false), None);
        assert_eq!(four.clone().key(key("b", 4)).problem(false), None);
        assert!(four.key(key("a", 4)).problem(false).unwrap().contains("\"a\""));
    }
}
