//! The server's half of the handshake.

use farcall_core::identity::{MAX_NAME_BYTES, MAX_SECRETS_OF_A_NAME};
use farcall_core::metrics::RefusalReason;
use farcall_core::service::ServiceDescription;
use farcall_core::{Authentication, Identity, Key};

use super::frame::{Frame, FrameError, FrameReader, Hello, Identify, Reject, TimeTold, Welcome};
use super::methods;
use super::proof::{ChannelBinding, End, Nonce, Proof, Transcript};
use super::versions::Versions;

/// A handshake with one client, at the server.
#[derive(Debug, Default)]
pub struct ServerHandshake {
    reader: FrameReader,
    stage: Stage,
    /// What clients are to prove, if anything.
    demand: Option<Box<Demand>>,
    /// Who the client is, if the socket has told; and what it may do, if that is limited.
    known: Option<(Identity, Option<Authentication>)>,
    /// The client speaks none of the server's versions.
    is_foreign: bool,
}

#[derive(Debug, Default)]
enum Stage {
    /// The client is to say hello.
    #[default]
    New,
    /// It was asked who it is.
    Challenged(Hello),
    /// It has said who it is, and is to prove it.
    Identified(Hello, Identify),
    /// The caller decides whether to let it in.
    Deciding,
    /// It is in, and is to say that it is ready.
    Welcomed,
    /// It is ready, or broke the protocol.
    Over,
}

/// Clients are to prove that they have a key of these.
#[derive(Debug)]
struct Demand {
    authentication: Authentication,
    nonce: Nonce,
    transcript: Transcript,
    /// The key that the client has proven to have.
    proven: Option<(Identity, Key)>,
}

/// The answer to a client that is let in.
#[derive(Debug)]
pub struct Greeting {
    /// The services that the client has named, if its declaration of one differs: the client must know their methods.
    pub differing: Vec<&'static ServiceDescription>,
    /// The welcome.
    pub welcome: Welcome,
}

/// What the client's bytes come to.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerStep {
    /// More bytes are needed: [`missing`](ServerHandshake::missing) says how many.
    Receive,
    /// The client's first frame: answer it with [`welcome`](ServerHandshake::welcome) or
    /// [`reject`](ServerHandshake::reject).
    Decide(Hello),
    /// The client is to prove who it is: send these bytes, then receive more.
    Challenge(Vec<u8>),
    /// The client may not come in: [`reject`](ServerHandshake::reject) it.
    Reject(Reject),
    /// Not a client, but a server that asks for the time: answer it with [`tell_time`](ServerHandshake::tell_time) or
    /// [`reject`](ServerHandshake::reject).
    TellTime,
    /// The client is connected: a server thread may have it.
    Ready,
    /// The client broke the protocol: send these bytes, and hang up.
    Refuse(Vec<u8>),
}

impl ServerHandshake {
    /// At a server that speaks these versions of the protocol, instead of [`SPOKEN`](super::SPOKEN).
    pub fn speaking(versions: Versions) -> ServerHandshake {
        ServerHandshake { reader: FrameReader::speaking(versions), ..ServerHandshake::default() }
    }

    /// Lets in only clients that prove that they have one of these keys. The nonce is random, and for this handshake only.
    pub fn authenticating(mut self, authentication: Authentication, nonce: Nonce) -> Self {
        let transcript = Transcript::default();
        let demand = Demand { authentication, nonce, transcript, proven: None };
        self.demand = Some(Box::new(demand));
        self
    }

    /// Proofs of keys hold within the TLS session with this binding alone.
    pub fn bound_to(mut self, binding: Option<ChannelBinding>) -> Self {
        if let Some(demand) = &mut self.demand {
            demand.transcript.bind(binding);
        }
        self
    }

    /// The client has already proven to be `identity`, in another way, and may use what this authentication permits; anything, if there is none.
    pub fn knowing(mut self, identity: Identity, permits: Option<Authentication>) -> Self {
        self.known = Some((identity, permits));
        self
    }

    /// Who the client has proven to be.
    pub fn identity(&self) -> Option<Identity> {
        let proven = self.demand.as_ref().and_then(|demand| demand.proven.as_ref());
        let proven = proven.map(|(identity, _)| identity);
        proven.or(self.known.as_ref().map(|(identity, _)| identity)).cloned()
    }

    /// The versions that the server speaks; once the client has said hello, the one that both take.
    pub fn versions(&self) -> Versions {
        self.reader.versions()
    }

    /// Why a client that broke the protocol was refused, for the server's counters.
    pub fn refusal_reason(&self) -> RefusalReason {
        if self.is_foreign { RefusalReason::Version } else { RefusalReason::Malformed }
    }

    /// How many bytes of the client's next frame are missing.
    pub fn missing(&self) -> usize {
        self.reader.missing()
    }

    /// Takes bytes of the client's.
    ///
    /// # Errors
    /// The bytes are not a frame: it is not a client of farcall, and gets no answer.
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<ServerStep, FrameError> {
        let read = self.reader.push(&mut bytes);
        let versions = self.versions();
        let refuse = |what: String| {
            ServerStep::Refuse(Frame::Reject(Reject::Malformed { what }).to_bytes_in(versions))
        };
        let frame = match read {
            Ok(None) => return Ok(ServerStep::Receive),
            Ok(Some(frame)) => frame,
            // The frame tells the client which versions are spoken here.
            Err(error @ FrameError::Version { .. }) => {
                self.is_foreign = true;
                return Ok(refuse(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        Ok(match (frame, std::mem::replace(&mut self.stage, Stage::Over)) {
            (Frame::Hello(hello), Stage::New) => self.hear_hello(hello),
            (Frame::AskTime, Stage::New) => {
                self.stage = Stage::New;
                ServerStep::TellTime
            }
            (Frame::Identify(identify), Stage::Challenged(hello)) => {
                self.hear();
                self.stage = Stage::Identified(hello, identify);
                ServerStep::Receive
            }
            (Frame::Proof(proof), Stage::Identified(hello, identify)) => {
                self.check_proof(hello, &identify, &proof)
            }
            (Frame::Ready, Stage::Welcomed) => ServerStep::Ready,
            (_, Stage::New) => refuse("no hello".into()),
            _ => refuse("a frame that was not due".into()),
        })
    }

    /// The last frame is part of what the ends prove.
    fn hear(&mut self) {
        if let Some(demand) = &mut self.demand {
            demand.transcript.add(End::Client, self.reader.last_bytes());
        }
    }

    fn hear_hello(&mut self, hello: Hello) -> ServerStep {
        self.hear();
        let versions = self.versions();
        match self.demand.as_deref_mut() {
            None => match &self.known {
                Some((identity, Some(authentication)))
                    if let Some(service) = forbidden(authentication, identity, &hello) =>
                {
                    not_permitted(identity, service)
                }
                _ => {
                    self.stage = Stage::Deciding;
                    ServerStep::Decide(hello)
                }
            },
            Some(Demand { nonce, transcript, .. }) => {
                let challenge = Frame::Challenge(*nonce).to_bytes_in(versions);
                transcript.add(End::Server, &challenge);
                self.stage = Stage::Challenged(hello);
                ServerStep::Challenge(challenge)
            }
        }
    }

    fn check_proof(&mut self, hello: Hello, identify: &Identify, proof: &Proof) -> ServerStep {
        let key = self.demand.as_ref().and_then(|demand| demand.key_of(&identify.key, proof));
        let Some(key) = key else {
            // The same words for a wrong name and a wrong secret: a stranger learns of no name.
            let reason = "the server has no key of that name with that secret; check both";
            return ServerStep::Reject(Reject::NotPermitted { reason: reason.into() });
        };
        let identity = Identity::named(&identify.key);
        self.hear();
        if let Some(demand) = &mut self.demand {
            // The server's proof is over the name that was asked for, so nobody on the way can change it.
            let own = demand.authentication.name_of_server();
            if let Some(wanted) = identify.server.as_deref().filter(|wanted| own != Some(*wanted)) {
                return not_wanted(wanted, own);
            }
            if let Some(service) = forbidden(&demand.authentication, &identity, &hello) {
                return not_permitted(&identity, service);
            }
            demand.proven = Some((identity, key));
        }
        self.stage = Stage::Deciding;
        ServerStep::Decide(hello)
    }

    /// The bytes for a client that is let in. Its next frame says that it is ready.
    pub fn welcome(&mut self, Greeting { differing, welcome }: Greeting) -> Vec<u8> {
        self.stage = Stage::Welcomed;
        let versions = self.versions();
        let methods = match &*differing {
            [] => Vec::new(),
            differing => methods::pages(differing),
        };
        let frames = methods.into_iter().chain([Frame::Welcome(welcome)]);
        let mut bytes: Vec<u8> = frames.flat_map(|frame| frame.to_bytes_in(versions)).collect();
        if let Some(Demand { transcript, proven: Some((_, key)), .. }) = self.demand.as_deref_mut()
        {
            transcript.add(End::Server, &bytes);
            let proof = transcript.prove(End::Server, key.secret());
            bytes.extend(Frame::Proof(proof).to_bytes_in(versions));
        }
        bytes
    }

    /// The bytes for a server that asked for the time.
    pub fn tell_time(&self, told: TimeTold) -> Vec<u8> {
        Frame::Time(told).to_bytes_in(self.versions())
    }

    /// The bytes for a client that is not let in.
    pub fn reject(reject: Reject) -> Vec<u8> {
        Frame::Reject(reject).to_bytes()
    }
}

/// The client wants another server.
#[cold]
fn not_wanted(wanted: &str, own: Option<&str>) -> ServerStep {
    // No client of ours asks for a longer one.
    let wanted: String = wanted.chars().take(MAX_NAME_BYTES).collect();
    let own = own.map_or("has no name".to_owned(), |own| format!("is {own:?}"));
    let reason = format!(
        "the client wants the server {wanted:?}, and the one that answered {own}; check the address and the name: if both are \
         right, somebody on the way connects clients to other servers"
    );
    ServerStep::Reject(Reject::NotPermitted { reason })
}

/// The first service that the client has named and may not use.
fn forbidden<'h>(
    authentication: &Authentication,
    identity: &Identity,
    hello: &'h Hello,
) -> Option<&'h str> {
    hello.services().find(|service| !authentication.permits(identity, service))
}

fn not_permitted(identity: &Identity, service: &str) -> ServerStep {
    let reason = format!("{identity} may not use {service}; let the server permit it");
    ServerStep::Reject(Reject::NotPermitted { reason })
}

impl Demand {
    /// The key of this name whose secret proves this. Makes the same number of comparisons whether there is a key of that name
    /// or not.
    fn key_of(&self, name: &str, proof: &Proof) -> Option<Key> {
        let mut keys = self.authentication.keys_of(name);
        let mut found = None;
        for _ in 0..MAX_SECRETS_OF_A_NAME {
            let key = keys.next();
            // Without a key, anything that takes as long.
            let secret = key.map_or(&self.nonce[..], Key::secret);
            let is_proven = self.transcript.is_proven(End::Client, secret, proof);
            found = found.or(key.filter(|_| is_proven));
        }
        found.cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::samples::{self, TERMS};

    fn greeting() -> Greeting {
        Greeting {
            differing: Vec::new(),
            welcome: Welcome { terms: TERMS, setup: Vec::new(), connection: None },
        }
    }

    #[test]
    fn a_client_says_hello_is_welcomed_and_is_ready() {
        let mut handshake = ServerHandshake::default();
        let bytes = Frame::Hello(samples::hello(&[1])).to_bytes();
        let mut step = ServerStep::Receive;
        for byte in bytes {
            assert_eq!(step, ServerStep::Receive);
            step = handshake.receive(&[byte]).unwrap();
        }
        assert_eq!(step, ServerStep::Decide(samples::hello(&[1])));
        handshake.welcome(greeting());
        assert_eq!(handshake.receive(&Frame::Ready.to_bytes()), Ok(ServerStep::Ready));
    }

    #[test]
    fn frames_that_are_not_due_are_refused() {
        let hello = Frame::Hello(samples::hello(&[1])).to_bytes();
        let mut handshake = ServerHandshake::default();
        let refused = handshake.receive(&Frame::Ready.to_bytes());
        assert!(matches!(refused, Ok(ServerStep::Refuse(_))));
        handshake.welcome(greeting());
        assert!(matches!(handshake.receive(&hello), Ok(ServerStep::Refuse(_))));
    }

    #[test]
    fn another_version_is_answered_and_garbage_is_not() {
        let mut bytes = Frame::Ready.to_bytes();
        bytes[8..12].copy_from_slice(&[9, 0, 9, 0]);
        let refused = ServerHandshake::default().receive(&bytes);
        assert!(matches!(refused, Ok(ServerStep::Refuse(_))));
        let garbage = ServerHandshake::default().receive(b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(garbage, Err(FrameError::Magic));
    }
}
