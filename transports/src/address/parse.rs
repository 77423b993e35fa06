//! An address in text: read, and written back.

use std::fmt;
use std::str::FromStr;

use super::options::{AddressOptions, Carrier};
use super::place::{DeviceChoice, MAX_NAME_BYTES, NetworkPlace, Place};
use super::{Address, AddressError, RDMA_OPTIONS, SCHEMES};

fn parse_index(key: &str, value: &str, least: u8) -> Result<u8, AddressError> {
    value.parse().ok().filter(|number| *number >= least).ok_or_else(|| {
        AddressError::bad_value(key, value, format!("a number from {least} to {}", u8::MAX))
    })
}

fn parse_device(value: &str) -> Result<String, AddressError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if value.is_empty() || value.len() > MAX_NAME_BYTES || !value.bytes().all(allowed) {
        return Err(AddressError::bad_value(
            "device",
            value,
            "a device's name, as `farcall info` lists".into(),
        ));
    }
    Ok(value.to_owned())
}

/// What addresses of a scheme give to a backend.
fn carrier(scheme: &str) -> Carrier {
    match scheme {
        "tcp" => Carrier::Stream,
        "shm" => Carrier::Memory,
        _ => Carrier::Device,
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let like = "shm://NAME, rdma://HOST:PORT or tcp://HOST:PORT";
        let (scheme, place, options) = AddressOptions::split(text, SCHEMES, like)?;
        Address::read(scheme, place, &AddressOptions::pairs(options))
    }
}

impl Address {
    /// Reads the parts of an address, of which the scheme is known.
    pub(super) fn read(
        scheme: &str,
        place: &str,
        options: &[(&str, &str)],
    ) -> Result<Address, AddressError> {
        let mut device = DeviceChoice::default();
        let own: &[_] = if scheme == "rdma" { RDMA_OPTIONS } else { &[] };
        let options = AddressOptions::read(options, carrier(scheme), own, |key, value| {
            match key {
                "device" => device.name = Some(parse_device(value)?),
                "gid_index" => device.gid_index = Some(parse_index(key, value, 0)?),
                _ => device.ib_port = Some(parse_index(key, value, 1)?),
            }
            Ok(())
        })?;
        let place = match scheme {
            "rdma" => Place::rdma(place, device)?,
            "tcp" => Place::tcp(place)?,
            _ => Place::shm(place)?,
        };
        Ok(Address { name: place.to_text(), place, options })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.place.scheme();
        write!(f, "{scheme}://{}?", self.name)?;
        if let Place::Rdma(NetworkPlace { device, .. }) = &self.place {
            if let Some(name) = &device.name {
                write!(f, "device={name}&")?;
            }
            if let Some(index) = device.gid_index {
                write!(f, "gid_index={index}&")?;
            }
            if let Some(port) = device.ib_port {
                write!(f, "ib_port={port}&")?;
            }
        }
        f.write_str("backend=")?;
        self.options.write(carrier(scheme), f)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse(text: &str) -> Result<Address, AddressError> {
        text.parse()
    }

    #[test]
    fn options_are_read_and_written_back() {
        let address = parse(
            "shm://kv-1.a_b?backend=write_imm&memory=9g&window=8&slot=1k&max_message=2g&silence=90s&\
             max_clients_per_source=1k&idle_timeout=5m",
        );
        let address = address.unwrap();
        assert_eq!(address.name(), "kv-1.a_b");
        assert_eq!(address.backend().name(), "write_imm");
        let config = address.config();
        assert_eq!((config.window, config.slot, config.max_message), (8, 1024, 2 << 30));
        assert_eq!(config.silence, Duration::from_secs(90));
        assert_eq!(config.max_clients_per_source, 1024);
        assert_eq!(config.idle_timeout, Duration::from_secs(300));
        assert_eq!(parse(&address.to_string()).unwrap(), address);
    }

    #[test]
    fn a_slot_is_as_long_as_the_backend_takes_there() {
        for (text, slot) in [
            ("shm://a?backend=send_recv&slot=16k", 16 << 10),
            ("shm://a?backend=write_imm&slot=1m", 1 << 20),
            ("rdma://a:1?backend=send_recv&slot=1m", 1 << 20),
        ] {
            assert_eq!(parse(text).unwrap().config().slot, slot, "{text}");
        }
    }

    #[test]
    fn a_slot_is_made_of_whole_cache_lines() {
        assert_eq!(parse("shm://a?slot=65").unwrap().config().slot, 128);
    }

    #[test]
    fn a_place_in_a_network_is_a_host_and_a_port() {
        for (text, host, port, name) in [
            ("rdma://10.0.0.1:7471", "10.0.0.1", 7471, "10.0.0.1:7471"),
            ("rdma://node-3.rack:0", "node-3.rack", 0, "node-3.rack:0"),
            ("rdma://[2001:db8::0:1]:65535", "2001:db8::1", 65535, "[2001:db8::1]:65535"),
        ] {
            let address = parse(&format!("{text}?device=rxe0&gid_index=3&ib_port=2")).unwrap();
            let Place::Rdma(place) = address.place() else { panic!("{address}") };
            assert_eq!((place.host.as_str(), place.port), (host, port));
            assert_eq!(place.device.name.as_deref(), Some("rxe0"));
            assert_eq!((place.device.gid_index, place.device.ib_port), (Some(3), Some(2)));
            assert_eq!(address.name(), name);
            assert_eq!(parse(&address.to_string()).unwrap(), address);
        }
    }

    #[test]
    fn a_place_over_tcp_has_the_backend_tcp() {
        for text in
            ["tcp://10.0.0.1:7471", "tcp://[2001:db8::1]:1?window=8", "tcp://node:0?backend=tcp"]
        {
            let address = parse(text).unwrap();
            assert!(matches!(address.place(), Place::Tcp(_)), "{address}");
            assert_eq!(address.backend().name(), "tcp");
            assert_eq!(parse(&address.to_string()).unwrap(), address);
        }
    }

    #[test]
    fn errors_name_the_thing_and_the_alternatives() {
        for (text, wanted) in [
            ("kv", "shm://NAME"),
            ("rdma2://kv", "`rdma2`; known are: shm, rdma, tcp"),
            ("shm://", "``"),
            ("shm://a/b", "`a/b`"),
            (
                "shm://kv?backend=tcp2",
                "`tcp2`; known are: write_imm, datagram, send_recv, tcp, rfp, scale, hybrid",
            ),
            ("shm://kv?backend=tcp", "`tcp` goes with tcp://HOST:PORT"),
            ("rdma://node:1?backend=tcp", "`tcp` goes with tcp://HOST:PORT"),
            ("tcp://node:1?backend=datagram", "`datagram` goes with shm://NAME"),
            ("tcp://node:1?device=rxe0", "`device`; known are: backend, window"),
            ("tcp://node", "`node` is no place in a network: it has no port"),
            ("tcp://node:1?slot=1&slot=2", "twice"),
            ("shm://kv?widow=3", "`widow`; known are: backend, window"),
            ("shm://kv?widow=3", "did you mean `window`?"),
            ("rdma://node:7?gid_indx=1", "did you mean `gid_index`?"),
            ("shm://kv?backend=write-imm", "did you mean `write_imm`?"),
            ("shmm://kv", "did you mean `shm`?"),
            ("shm://kv?device=rxe0", "`device`; known are: backend, window"),
            ("shm://kv?window=0", "from 1 to 1024"),
            ("shm://kv?window=x", "`window=x`"),
            ("shm://kv?window", "`window=`"),
            ("shm://kv?slot=99999999999999999999g", "slot="),
            ("shm://kv?backend=send_recv&slot=16385", "a number from 64 to 16384"),
            ("shm://kv?window=1&window=2", "twice"),
            ("shm://kv?slot=é", "slot=é"),
            ("shm://kv?silence=5", "from 1s to 60m"),
            ("shm://kv?silence=999ms", "`silence=999ms`"),
            ("shm://kv?silence=61m", "from 1s to 60m"),
            ("shm://kv?silence=+5s", "silence=+5s"),
            ("shm://kv?silence=99999999999999999999m", "silence="),
            ("shm://kv?idle_timeout=0s", "from 1s to 1440m"),
            ("shm://kv?idle_timeout=1441m", "`idle_timeout=1441m`"),
            ("shm://kv?max_clients_per_source=0", "from 1 to 4294967295"),
            ("shm://kv?max_message=7", "a number from 64 to"),
            ("sim://1/kv", "`farcall::rack` serves and dials them"),
            ("tcp://[fe80::1]:7471", "use another address of the host"),
            ("rdma://[febf::1]:7471", "use another address of the host"),
            ("shm://kv?max_message=1g&memory=1g", "a number from 3238002688"),
            ("rdma://", "`` is no place in a network: it has no port"),
            ("rdma://node", "`node` is no place in a network: it has no port"),
            ("rdma://:7471", "not a host"),
            ("rdma://node:", "0 to 65535"),
            ("rdma://node:65536", "0 to 65535"),
            ("rdma://node:+7", "0 to 65535"),
            ("rdma://::1:7471", "in brackets"),
            ("rdma://[node]:7471", "not an IPv6 address"),
            ("rdma://user@node:7471", "not a host"),
            ("tcp://a..b:1", "between dots has 1 to 63"),
            ("tcp://.:1", "between dots has 1 to 63"),
            ("tcp://-node:1", "begins or ends with `-`"),
            ("tcp://node-.rack:1", "begins or ends with `-`"),
            ("tcp://10.0.0.256:1", "four numbers from 0 to 255"),
            ("tcp://10.0.1:1", "four numbers from 0 to 255"),
            ("tcp://a\u{1b}[2J:1", "`a\\u{1b}[2J:1`"),
            ("rdma://node:7?colour=red", "`colour`; known are: backend, window, slot"),
            ("rdma://node:7?colour=red", "device, gid_index, ib_port"),
            ("rdma://node:7?device=", "a device's name"),
            ("rdma://node:7?gid_index=256", "from 0 to 255"),
            ("rdma://node:7?ib_port=0", "from 1 to 255"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn errors_repeat_little_of_a_long_text() {
        let (long, label) = ("x".repeat(10_000), "x".repeat(64));
        let texts = [
            long.clone(),
            format!("{long}://kv"),
            format!("shm://{long}"),
            format!("tcp://{long}:1"),
            format!("tcp://{label}:1"),
            format!("tcp://node:{}", "1".repeat(10_000)),
            format!("shm://kv?{long}=1"),
            format!("shm://kv?backend={long}"),
            format!("shm://kv?window={long}"),
            format!("shm://kv?{long}=1&{long}=1"),
            format!("rdma://node:1?device={long}"),
        ];
        for text in texts {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.len() < 400, "{error}");
        }
        assert!(parse("tcp://a.b-c.d_e.example.:1").is_ok());
        assert!(parse(&format!("tcp://{}:1", "x".repeat(63))).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_an_address_or_an_error(text in "((shm|rdma|tcp)://)?\\PC{0,40}") {
            if let Ok(address) = parse(&text) {
                proptest::prop_assert_eq!(parse(&address.to_string()).unwrap(), address);
            }
        }

        #[test]
        fn any_place_is_an_address_or_an_error(place in "[a-z0-9.:\\[\\]]{0,12}:[0-9]{1,5}") {
            if let Ok(address) = parse(&format!("rdma://{place}")) {
                proptest::prop_assert_eq!(parse(&address.to_string()).unwrap(), address);
            }
        }
    }

    #[test]
    fn an_address_may_offer_several_backends_each_with_its_own_options() {
        let text = "shm://kv?backend=write_imm,scale,rfp&window=8&group=4&responses=fetched";
        let address = parse(text).unwrap();
        let offered: Vec<_> = address.offered().collect();
        assert_eq!(
            offered.iter().map(|it| it.0.name()).collect::<Vec<_>>(),
            ["write_imm", "scale", "rfp"]
        );
        assert!(offered.iter().all(|(_, config)| config.window == 8));
        assert_eq!(offered[1].1.options.get("group"), Some("4"));
        assert_eq!(offered[2].1.options.get("group"), None);
        assert_ne!(offered[0].1.slot, offered[1].1.slot, "each as it is used to");
        assert_eq!(address.to_string(), text);
        assert_eq!(parse(&address.to_string()).unwrap(), address);
        // The device is read once.
        let text = "rdma://node:7?device=rxe0&backend=rfp,write_imm";
        assert_eq!(parse(text).unwrap().to_string(), text);
        assert!(parse("shm://kv?backend=rfp,").is_err());
    }
}
