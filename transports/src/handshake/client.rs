//! The client's half of the handshake.

use farcall_core::service::ServiceDescription;
use farcall_core::transport::Lane;
use farcall_core::{Compatibility, Key, MissingMethod};

use super::frame::{
    Frame, FrameError, FrameReader, HAS_LANES, Hello, Identify, NAMES_FURTHER, NAMES_THREAD,
    NamedService, Reject, Welcome,
};
use super::methods::{MethodList, MethodsError};
use super::proof::{ChannelBinding, End, Nonce, Proof, Transcript};
use super::versions::{SPOKEN, Versions};
use crate::contract::Terms;

/// A client that has a hello to say.
#[derive(Debug)]
pub struct ClientHandshake {
    hello: Hello,
    /// The services that the connection is to carry, as the hello names them.
    services: Vec<&'static ServiceDescription>,
    require: Vec<&'static str>,
    /// The versions that the hello says.
    spoken: Versions,
    reader: FrameReader,
    /// The server's methods so far, if it has sent any.
    methods: Option<MethodList>,
    /// What the client proves itself with, if it does.
    credentials: Option<Box<Credentials>>,
}

/// The key of a client, and how far the two ends have proven that they have it.
#[derive(Debug)]
struct Credentials {
    key: Key,
    nonce: Nonce,
    transcript: Transcript,
    stage: Stage,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// The server has not asked who the client is.
    Unasked,
    /// The client has proven itself.
    Proven,
    /// The server has agreed, and is to prove itself.
    Welcomed(Welcome),
}

/// What the server's bytes come to.
#[derive(Debug)]
pub enum ClientStep {
    /// More bytes are needed: [`missing`](ClientHandshake::missing) says how many.
    Receive,
    /// Send these bytes, then receive more.
    Send(Vec<u8>),
    /// The ends have agreed: connect, and send [`ready_bytes`](ClientHandshake::ready_bytes).
    Connect(Agreement),
}

/// What the ends have agreed on.
#[derive(Debug)]
pub struct Agreement {
    /// The server's last frame.
    pub welcome: Welcome,
    /// What the client cannot call; `None`: it can call everything.
    pub compatibility: Option<Box<Compatibility>>,
}

/// Why a client is not connected.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The server's bytes are not a frame.
    Frame(FrameError),
    /// The server says no.
    Rejected(Reject),
    /// The server agreed to terms that the client did not offer.
    ImpossibleTerms(Terms),
    /// The server's list of methods breaks its rules.
    Methods(MethodsError),
    /// The server lacks methods of a service that the client requires, or all of them.
    Incompatible {
        /// The service's name.
        service: &'static str,
        /// The methods, and the reasons.
        unmet: Vec<MissingMethod>,
    },
    /// The server's connections carry one service each, and the client has named several.
    OneService,
    /// The server's connections have one lane each, and the client wants a further one.
    OneLane,
    /// The server chooses the thread of each client, and this one has named it.
    AnyThread,
    /// The server answered with a frame that was not due, or that only clients send.
    UnexpectedFrame,
    /// The server asks for a key, and the client has none.
    KeyWanted,
    /// The client has a key, and the server does not ask for one.
    KeyNotWanted,
    /// The server has not proven that it has the client's key.
    FalseServer,
}

impl ClientHandshake {
    /// Begins with this hello, as a client of this service.
    pub fn new(hello: Hello, service: &'static ServiceDescription) -> ClientHandshake {
        ClientHandshake {
            hello,
            services: vec![service],
            require: Vec::new(),
            spoken: SPOKEN,
            reader: FrameReader::speaking(SPOKEN),
            methods: None,
            credentials: None,
        }
    }

    /// Has the connection carry these services, too.
    pub fn carrying(mut self, services: &[&'static ServiceDescription]) -> ClientHandshake {
        for service in services {
            let ServiceDescription { name, fingerprint, .. } = **service;
            self.hello.further.push(NamedService { name: name.to_owned(), fingerprint });
            self.services.push(service);
        }
        self
    }

    /// Requires these methods of the first service, besides those that each service requires.
    pub fn require(mut self, methods: &[&'static str]) -> ClientHandshake {
        self.require.extend(methods);
        self
    }

    /// Speaks these versions of the protocol, instead of [`SPOKEN`](super::SPOKEN).
    pub fn speaking(mut self, versions: Versions) -> ClientHandshake {
        self.spoken = versions;
        self.reader = FrameReader::speaking(versions);
        self
    }

    /// Proves that the client has this key, and demands the same of the server. The nonce is random, and for this handshake only.
    pub fn with_key(mut self, key: Key, nonce: Nonce) -> ClientHandshake {
        let (transcript, stage) = (Transcript::default(), Stage::Unasked);
        self.credentials = Some(Box::new(Credentials { key, nonce, transcript, stage }));
        self
    }

    /// Proofs of keys hold within the TLS session with this binding alone.
    pub fn bound_to(mut self, binding: Option<ChannelBinding>) -> ClientHandshake {
        if let Some(credentials) = &mut self.credentials {
            credentials.transcript.bind(binding);
        }
        self
    }

    /// The versions that the client speaks; once the server has answered, the one that both take.
    pub fn versions(&self) -> Versions {
        self.reader.versions()
    }

    /// The hello.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The bytes to send first.
    pub fn hello_bytes(&self) -> Vec<u8> {
        Frame::Hello(self.hello.clone()).to_bytes_in(self.spoken)
    }

    /// How many bytes of the server's answer are missing.
    pub fn missing(&self) -> usize {
        self.reader.missing()
    }

    /// Takes bytes of the server's answer. Gives the agreement once the answer is whole.
    ///
    /// # Errors
    /// Why there is no connection; the handshake is over then.
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<ClientStep, Refusal> {
        while let Some(frame) = self.reader.push(&mut bytes).map_err(Refusal::Frame)? {
            match frame {
                Frame::Challenge(_) => return self.prove().map(ClientStep::Send),
                Frame::Proof(proof) => {
                    return self.check_proof(&proof).map(ClientStep::Connect);
                }
                Frame::Methods(page) => {
                    self.hear_proven()?;
                    let list = self.methods.get_or_insert_with(|| MethodList::new(&self.services));
                    list.take(page).map_err(Refusal::Methods)?;
                }
                Frame::Welcome(welcome) => {
                    self.hear_proven()?;
                    match &mut self.credentials {
                        None => return self.agree(welcome).map(ClientStep::Connect),
                        Some(credentials) => credentials.stage = Stage::Welcomed(welcome),
                    }
                }
                Frame::Reject(reject) => return Err(Refusal::Rejected(reject)),
                Frame::Hello(_)
                | Frame::Ready
                | Frame::AskTime
                | Frame::Time(_)
                | Frame::Identify(_) => return Err(Refusal::UnexpectedFrame),
            }
        }
        Ok(ClientStep::Receive)
    }

    /// The server asks who the client is: the bytes that say it, and prove it.
    fn prove(&mut self) -> Result<Vec<u8>, Refusal> {
        let (hello, versions) = (self.hello_bytes(), self.versions());
        let Credentials { key, nonce, transcript, stage } =
            self.credentials.as_deref_mut().ok_or(Refusal::KeyWanted)?;
        if *stage != Stage::Unasked {
            return Err(Refusal::UnexpectedFrame);
        }
        let server = key.server_name().map(str::to_owned);
        let identify = Identify { key: key.name().to_owned(), server, nonce: *nonce };
        let identify = Frame::Identify(identify).to_bytes_in(versions);
        transcript.add(End::Client, &hello);
        transcript.add(End::Server, self.reader.last_bytes());
        transcript.add(End::Client, &identify);
        let proof = Frame::Proof(transcript.prove(End::Client, key.secret())).to_bytes_in(versions);
        transcript.add(End::Client, &proof);
        *stage = Stage::Proven;
        Ok([identify, proof].concat())
    }

    /// Hears a frame of a server that lets the client in: to one with a key, it must have asked before.
    fn hear_proven(&mut self) -> Result<(), Refusal> {
        match self.credentials.as_deref_mut() {
            None => Ok(()),
            Some(Credentials { stage: Stage::Unasked, .. }) => Err(Refusal::KeyNotWanted),
            Some(Credentials { stage: Stage::Welcomed(_), .. }) => Err(Refusal::UnexpectedFrame),
            Some(Credentials { stage: Stage::Proven, transcript, .. }) => {
                transcript.add(End::Server, self.reader.last_bytes());
                Ok(())
            }
        }
    }

    /// The server's proof has come, which is its last frame.
    fn check_proof(&mut self, proof: &Proof) -> Result<Agreement, Refusal> {
        let Some(Credentials { key, transcript, stage: Stage::Welcomed(welcome), .. }) =
            self.credentials.take().map(|credentials| *credentials)
        else {
            return Err(Refusal::UnexpectedFrame);
        };
        // The frame's prefix is the only part of the handshake that no proof covers.
        let is_exact =
            self.reader.last_bytes() == Frame::Proof(*proof).to_bytes_in(self.versions());
        if !is_exact || !transcript.is_proven(End::Server, key.secret(), proof) {
            return Err(Refusal::FalseServer);
        }
        self.agree(welcome)
    }

    fn agree(&self, welcome: Welcome) -> Result<Agreement, Refusal> {
        if !welcome.terms.is_within(&self.hello.terms) {
            return Err(Refusal::ImpossibleTerms(welcome.terms));
        }
        if self.services.len() > 1 && self.versions().highest < NAMES_FURTHER {
            return Err(Refusal::OneService);
        }
        if matches!(self.hello.lane, Lane::Of(_)) && self.versions().highest < HAS_LANES {
            return Err(Refusal::OneLane);
        }
        if self.hello.thread.is_some() && self.versions().highest < NAMES_THREAD {
            return Err(Refusal::AnyThread);
        }
        let mut compatibility: Option<Compatibility> = None;
        let mut require = &self.require[..];
        for service in &self.services {
            let differing = self.methods.as_ref().and_then(|list| list.compare(service));
            let unmet = Compatibility::unmet(differing.as_ref(), service, require);
            if !unmet.is_empty() {
                return Err(Refusal::Incompatible { service: service.name, unmet });
            }
            compatibility = Compatibility::both(compatibility, differing);
            // What the caller requires is of the first service.
            require = &[];
        }
        Ok(Agreement { welcome, compatibility: compatibility.map(Box::new) })
    }

    /// The bytes to send last: the client is connected.
    pub fn ready_bytes(&self) -> Vec<u8> {
        Frame::Ready.to_bytes_in(self.versions())
    }
}

#[cfg(test)]
mod tests {
    use farcall_core::{MethodDescription, MethodMismatch};

    use super::*;
    use crate::handshake::samples::{self, TERMS};
    use crate::handshake::{Greeting, MethodEntry, ServerHandshake, ServerStep};

    static METHODS: [MethodDescription; 2] =
        [MethodDescription::new("get", 1, 10), MethodDescription::new("put", 2, 20)];
    static KV: ServiceDescription =
        ServiceDescription { name: "Kv", fingerprint: 7, methods: &METHODS };

    fn answer(frames: &[Frame]) -> Result<Agreement, Refusal> {
        let mut handshake = ClientHandshake::new(samples::hello(&[]), &KV);
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::to_bytes).collect();
        let (last, front) = bytes.split_last().unwrap();
        assert!(matches!(handshake.receive(front), Ok(ClientStep::Receive)));
        assert_eq!(handshake.missing(), 1);
        handshake.receive(&[*last]).map(agreement)
    }

    fn agreement(step: ClientStep) -> Agreement {
        let ClientStep::Connect(agreement) = step else { panic!("{step:?}") };
        agreement
    }

    fn welcome(window: u32) -> Frame {
        Frame::Welcome(Welcome {
            terms: Terms { window, ..TERMS },
            setup: vec![1],
            connection: None,
        })
    }

    #[test]
    fn a_welcome_ends_it_and_anything_else_refuses() {
        let agreement = answer(&[welcome(4)]).unwrap();
        assert_eq!(agreement.welcome.setup, [1]);
        assert!(agreement.compatibility.is_none());
        assert!(matches!(answer(&[welcome(9)]), Err(Refusal::ImpossibleTerms(_))));
        let reject = Reject::Refused { reason: "full".into() };
        let rejected = answer(&[Frame::Reject(reject.clone())]).unwrap_err();
        assert_eq!(rejected, Refusal::Rejected(reject));
        assert_eq!(answer(&[Frame::Ready]).unwrap_err(), Refusal::UnexpectedFrame);
    }

    fn methods(entries: &[(u32, u64)]) -> Frame {
        let entry =
            |(id, shape): &(u32, u64)| MethodEntry { id: *id, flags: 0, shapes: vec![*shape] };
        Frame::Methods(entries.iter().map(entry).collect())
    }

    #[test]
    fn pages_before_the_welcome_say_what_can_be_called() {
        let all = answer(&[methods(&[(1, 10)]), methods(&[(2, 20), (3, 0)]), welcome(4)]).unwrap();
        assert!(all.compatibility.is_none());
        let some = answer(&[methods(&[(1, 10)]), methods(&[(2, 99)]), welcome(4)]).unwrap();
        let compatibility = some.compatibility.expect("put differs");
        assert_eq!(compatibility.missing().map(|it| &*it.method).collect::<Vec<_>>(), ["Kv.put"]);
    }

    #[test]
    fn a_server_at_which_nothing_can_be_called_is_refused() {
        for page in [methods(&[]), methods(&[(1, 99), (3, 0)])] {
            let refusal = answer(&[page, welcome(4)]).unwrap_err();
            assert!(
                matches!(&refusal, Refusal::Incompatible { unmet, .. } if unmet.len() == 2),
                "{refusal:?}"
            );
        }
    }

    #[test]
    fn a_required_method_that_is_missing_refuses_the_server() {
        let connect = |require: &[&'static str], frames: &[Frame]| {
            let mut handshake = ClientHandshake::new(samples::hello(&[]), &KV).require(require);
            let bytes: Vec<u8> = frames.iter().flat_map(Frame::to_bytes).collect();
            handshake.receive(&bytes).map(agreement).map(|_| true)
        };
        let without_put = [methods(&[(1, 10)]), welcome(4)];
        assert_eq!(connect(&["get"], &without_put), Ok(true));
        let missing = |method: &str, why| {
            Err(Refusal::Incompatible {
                service: "Kv",
                unmet: vec![MissingMethod { method: method.into(), why }],
            })
        };
        assert_eq!(
            connect(&["get", "put"], &without_put),
            missing("Kv.put", MethodMismatch::Absent)
        );
        // A name that the client itself does not declare is an error at any server.
        assert_eq!(connect(&["gte"], &[welcome(4)]), missing("Kv.gte", MethodMismatch::Undeclared));
    }

    #[test]
    fn ends_of_overlapping_versions_take_the_highest_common_one() {
        let range = |lowest, highest| Versions { lowest, highest };
        for (ours, theirs, taken) in [((1, 3), (2, 5), 3), ((2, 5), (1, 3), 3), ((1, 1), (1, 9), 1)]
        {
            let mut client =
                ClientHandshake::new(samples::hello(&[]), &KV).speaking(range(ours.0, ours.1));
            let mut server = ServerHandshake::speaking(range(theirs.0, theirs.1));
            let step = server.receive(&client.hello_bytes()).unwrap();
            assert_eq!(step, ServerStep::Decide(samples::hello(&[])));
            let welcome = Welcome { terms: TERMS, setup: Vec::new(), connection: None };
            let answer = server.welcome(Greeting { differing: vec![&KV], welcome });
            agreement(client.receive(&answer).unwrap());
            assert_eq!(server.receive(&client.ready_bytes()), Ok(ServerStep::Ready));
            assert_eq!(
                (client.versions(), server.versions()),
                (range(taken, taken), range(taken, taken))
            );
        }
    }

    #[test]
    fn ends_without_a_common_version_name_both_ranges() {
        let range = |lowest, highest| Versions { lowest, highest };
        let (ours, theirs) = (range(1, 2), range(3, 5));
        let mut client = ClientHandshake::new(samples::hello(&[]), &KV).speaking(ours);
        let step = ServerHandshake::speaking(theirs).receive(&client.hello_bytes());
        let Ok(ServerStep::Refuse(answer)) = step else { panic!("{step:?}") };
        let refusal = client.receive(&answer).unwrap_err();
        assert_eq!(refusal, Refusal::Frame(FrameError::Version { ours, theirs }));
    }

    #[test]
    fn a_list_that_breaks_its_rules_is_refused_before_the_welcome() {
        let refusal = answer(&[methods(&[(2, 0)]), methods(&[(1, 0)])]).unwrap_err();
        assert_eq!(refusal, Refusal::Methods(MethodsError::Order));
    }

    static LOG_METHODS: [MethodDescription; 1] = [MethodDescription::new("append", 9, 9)];
    static LOG: ServiceDescription =
        ServiceDescription { name: "Log", fingerprint: 8, methods: &LOG_METHODS };

    /// A client of both services at a server that speaks this version.
    fn of_both(version: u16, frames: &[Frame]) -> Result<Agreement, Refusal> {
        let mut client = ClientHandshake::new(samples::hello(&[]), &KV).carrying(&[&LOG]);
        let versions = Versions::only(version);
        let bytes: Vec<u8> = frames.iter().flat_map(|it| it.to_bytes_in(versions)).collect();
        client.receive(&bytes).map(agreement)
    }

    #[test]
    fn services_are_compared_one_by_one() {
        assert!(of_both(2, &[welcome(8)]).unwrap().compatibility.is_none());
        let all = methods(&[(1, 10), (2, 20), (9, 7)]);
        let refusal = of_both(2, &[all, welcome(8)]).unwrap_err();
        assert!(
            matches!(&refusal, Refusal::Incompatible { service: "Log", unmet } if unmet.len() == 1),
            "{refusal:?}"
        );
        let one_is_missing = methods(&[(1, 10), (9, 9)]);
        let compatibility = of_both(2, &[one_is_missing, welcome(8)]).unwrap().compatibility;
        let missing: Vec<_> =
            compatibility.unwrap().missing().map(|it| it.method.to_string()).collect();
        assert_eq!(missing.len(), 1);
        assert!(missing[0].starts_with("Kv."), "{missing:?}");
    }

    #[test]
    fn an_older_server_carries_one_service_only() {
        assert_eq!(of_both(1, &[welcome(8)]).unwrap_err(), Refusal::OneService);
    }

    #[test]
    fn an_older_server_takes_no_named_thread() {
        let naming_thread = |version| {
            let hello = Hello { thread: Some(2), ..samples::hello(&[]) };
            let mut client = ClientHandshake::new(hello, &KV);
            client.receive(&welcome(8).to_bytes_in(Versions::only(version))).map(agreement)
        };
        assert_eq!(naming_thread(NAMES_THREAD - 1).unwrap_err(), Refusal::AnyThread);
        assert!(naming_thread(NAMES_THREAD).is_ok());
    }
}
