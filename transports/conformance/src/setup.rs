//! How a case sets up its server and connections.

/// The setup of a server, and the options of its address.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Server threads; one by default.
    pub threads: Option<usize>,
    /// Calls in flight on one connection.
    pub window: Option<u32>,
    /// Bytes of a slot, for backends that have slots.
    pub slot: Option<usize>,
    /// The longest message in bytes.
    pub max_message: Option<u64>,
    /// Bytes that large messages may hold at a time.
    pub memory: Option<u64>,
    /// How long a peer may be silent, in seconds.
    pub silence: Option<u64>,
    /// The most clients at a time.
    pub max_clients: Option<usize>,
    /// The most calls of a client per second.
    pub calls_per_second: Option<u32>,
    /// Offer the second service too.
    pub other: bool,
    /// The version of the service that changes to offer too: 1 or 2.
    pub evolving: Option<usize>,
    /// Sleep as soon as there is nothing to do.
    pub sleepy: bool,
    /// Idle threads run calls of threads that are behind.
    pub steals: bool,
}

impl Setup {
    /// Sets the number of server threads.
    pub fn threads(mut self, threads: usize) -> Setup {
        self.threads = Some(threads);
        self
    }

    /// Sets the window.
    pub fn window(mut self, window: u32) -> Setup {
        self.window = Some(window);
        self
    }

    /// Sets the slot's length.
    pub fn slot(mut self, bytes: usize) -> Setup {
        self.slot = Some(bytes);
        self
    }

    /// Sets the longest message's length.
    pub fn max_message(mut self, bytes: u64) -> Setup {
        self.max_message = Some(bytes);
        self
    }

    /// Sets the longest message's length, and little memory for large messages: a few of the longest at a time, and
    /// the backend's own needs.
    pub fn tight_memory(mut self, max_message: u64) -> Setup {
        self.max_message = Some(max_message);
        self.memory = Some(4 * max_message + (20 << 20));
        self
    }

    /// Sets how long a peer may be silent.
    pub fn silence(mut self, seconds: u64) -> Setup {
        self.silence = Some(seconds);
        self
    }

    /// Sets the most clients at a time.
    pub fn max_clients(mut self, clients: usize) -> Setup {
        self.max_clients = Some(clients);
        self
    }

    /// Offers the second service too.
    pub fn with_other(mut self) -> Setup {
        self.other = true;
        self
    }

    /// Offers that version of [`Evolving`](crate::evolving) too.
    pub fn evolving(mut self, version: usize) -> Setup {
        self.evolving = Some(version);
        self
    }

    /// Makes the server sleep as soon as there is nothing to do.
    pub fn sleepy(mut self) -> Setup {
        self.sleepy = true;
        self
    }

    /// Gives each client a quota of calls.
    pub fn calls_per_second(mut self, calls: u32) -> Setup {
        self.calls_per_second = Some(calls);
        self
    }

    /// Lets idle threads run calls of threads that are behind.
    pub fn steals(mut self) -> Setup {
        self.steals = true;
        self
    }

    /// The server's part, as words that [`from_words`](Setup::from_words) reads.
    pub(crate) fn to_words(&self) -> String {
        let threads = self.threads.unwrap_or(1);
        let mut words = format!("threads={threads}");
        if let Some(clients) = self.max_clients {
            words.push_str(&format!(" max_clients={clients}"));
        }
        if let Some(calls) = self.calls_per_second {
            words.push_str(&format!(" calls_per_second={calls}"));
        }
        if let Some(version) = self.evolving {
            words.push_str(&format!(" evolving={version}"));
        }
        for (word, said) in
            [(" other", self.other), (" sleepy", self.sleepy), (" steals", self.steals)]
        {
            if said {
                words.push_str(word);
            }
        }
        words
    }

    /// Reads the words of [`to_words`](Setup::to_words).
    pub(crate) fn from_words<'a>(words: impl Iterator<Item = &'a str>) -> Setup {
        words.fold(Setup::default(), |setup, word| match word {
            "other" => setup.with_other(),
            "sleepy" => setup.sleepy(),
            "steals" => setup.steals(),
            _ => {
                let (key, value) = word.split_once('=').unwrap_or((word, ""));
                match (key, value.parse::<usize>()) {
                    ("threads", Ok(threads)) => setup.threads(threads),
                    ("evolving", Ok(version)) => setup.evolving(version),
                    ("max_clients", Ok(clients)) => setup.max_clients(clients),
                    ("calls_per_second", Ok(calls)) => setup.calls_per_second(calls as u32),
                    _ => panic!("{word:?} is no part of a setup"),
                }
            }
        })
    }
}
