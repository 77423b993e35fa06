//! Options for what this program proves to a server: who it is.

use anyhow::Result;
use farcall::{Connecting, Key, PollClient, PollConnecting, ServiceClient};

#[cfg(feature = "tls")]
use crate::tls::TlsArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct Credentials {
    /// Proves to the server who this client is: the name of a key, and the file with its secret.
    #[arg(long, value_name = "NAME:PATH", value_parser = parse_key)]
    key_file: Option<Key>,
    /// The name of the server, as it gives it itself: with a key, no other server that has the key will do.
    #[arg(long, value_name = "NAME", requires = "key_file")]
    server_name: Option<String>,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    tls: TlsArgs,
}

fn parse_key(text: &str) -> Result<Key, String> {
    let (name, path) = text.split_once(':').ok_or("not a NAME:PATH")?;
    Key::from_file(name, path).map_err(|error| error.to_string())
}

impl Credentials {
    /// Gives them to a client that is about to connect.
    ///
    /// # Errors
    /// A file cannot be read, or has something else in it.
    pub(crate) fn of<C: PollClient>(&self, client: PollConnecting<C>) -> Result<PollConnecting<C>> {
        #[cfg(feature = "tls")]
        let client = match self.tls.settings()? {
            Some(tls) => client.tls(tls),
            None => client,
        };
        Ok(match self.key()? {
            Some(key) => client.key(key),
            None => client,
        })
    }

    /// Gives them to a client with a channel that is about to connect.
    ///
    /// # Errors
    /// A file cannot be read, or has something else in it.
    pub(crate) fn of_channel<C: ServiceClient>(
        &self,
        client: Connecting<C>,
    ) -> Result<Connecting<C>> {
        #[cfg(feature = "tls")]
        let client = match self.tls.settings()? {
            Some(tls) => client.tls(tls),
            None => client,
        };
        Ok(match self.key()? {
            Some(key) => client.key(key),
            None => client,
        })
    }

    fn key(&self) -> Result<Option<Key>> {
        Ok(match (self.key_file.clone(), &self.server_name) {
            (Some(key), Some(server)) => Some(key.for_server(server)?),
            (key, _) => key,
        })
    }
}
