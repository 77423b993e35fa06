use super::*;
use crate::compatibility::MethodMismatch;
use crate::service::Answer;
use crate::transport::Message;
use crate::wire::{self, Status};
use std::io;
use std::sync::Arc;

fn late(may_have_run: bool, waited: Waited) -> RpcError {
    RpcError::DeadlineExceeded { may_have_run, waited }
}

fn gone(may_have_run: bool, why: GoneReason) -> RpcError {
    RpcError::PeerGone { may_have_run, why }
}

fn io_error(text: &str) -> ConnectError {
    let (address, doing) = ("tcp://kv:1".into(), "connecting");
    ConnectError::Io { address, doing, cause: io::Error::other(text.to_owned()) }
}

/// The error of a call that a server answered with this status.
fn of_status(status: Status) -> Option<RpcError> {
    match wire::open_response(Message::Borrowed(&status.alone())) {
        Answer::Failed(error) => Some(error),
        Answer::Value(_) | Answer::Service(_) => None,
    }
}

#[test]
fn each_answer_of_a_server_says_whether_the_call_may_have_run() {
    for status in Status::ALL {
        let expected = match status {
            Status::Value | Status::ServiceError => None,
            // The handler did not begin.
            Status::NoSuchMethod
            | Status::Malformed
            | Status::Late
            | Status::Overloaded
            | Status::ShuttingDown => Some(false),
            Status::HandlerPanicked
            | Status::Expired
            | Status::Cancelled
            | Status::TooLarge
            | Status::Unencodable
            | Status::ResponseDropped
            // Never sent by a server that keeps the protocol.
            | Status::Gone => Some(true),
        };
        let error = of_status(status);
        assert_eq!(error.as_ref().map(RpcError::may_have_run), expected, "{status:?}: {error:?}");
    }
    for broken in [&[][..], &[0; 7], &[200, 0, 0, 0, 0, 0, 0, 0]] {
        let Answer::Failed(error) = wire::open_response(Message::Borrowed(broken)) else {
            panic!("it is no answer")
        };
        assert!(error.may_have_run(), "{error:?}");
    }
}

#[test]
fn a_deadline_at_the_server_says_where_the_call_was() {
    assert_eq!(of_status(Status::Late), Some(late(false, Waited::InServerQueue)));
    assert_eq!(of_status(Status::Expired), Some(late(true, Waited::ForHandler)));
}

#[test]
fn each_failure_of_a_transport_says_whether_the_call_may_have_run() {
    let misbehaved = FailureKind::PeerMisbehaved("a rule");
    let too_large = FailureKind::TooLarge { len: 2, max: 1 };
    let kinds = [
        FailureKind::Goodbye,
        FailureKind::PeerGone,
        misbehaved,
        too_large,
        FailureKind::Device("it was removed"),
        FailureKind::Closed,
    ];
    for kind in kinds {
        for may_have_run in [true, false] {
            let error = RpcError::from(TransportFailure::new(kind, may_have_run));
            assert_eq!(error.may_have_run(), may_have_run, "{error:?}");
        }
    }
    for refused in [
        ReserveError::Backpressure(Backpressure::Credits),
        ReserveError::TooLarge { len: 2, max: 1 },
        ReserveError::Closed,
    ] {
        let error = RpcError::from(refused);
        assert!(!error.may_have_run(), "nothing was sent: {error:?}");
    }
}

#[test]
fn errors_of_this_end_say_whether_the_call_may_have_run() {
    let method = Arc::from("Kv.get");
    let errors = [
        (RpcError::Misuse { what: "a call was polled after it had ended" }, true),
        (RpcError::Overloaded(Backpressure::Calls), false),
        (RpcError::NoSuchMethod { method, why: MethodMismatch::NewerArgument }, false),
        (RpcError::Cancelled, true),
        (RpcError::HandlerPanicked, true),
        (RpcError::ResponseDropped, true),
        (RpcError::NO_TIME, false),
        (RpcError::not_sent(GoneReason::Closed), false),
        (RpcError::not_connected(Arc::new(io_error("refused"))), false),
        (crate::client::unencodable("Kv.get", crate::codec::EncodeError::Unsupported), false),
        (crate::blocking::late_answer(), true),
    ];
    for (error, may_have_run) in errors {
        assert_eq!(error.may_have_run(), may_have_run, "{error:?}");
        let service = CallError::<u32>::from(error);
        assert_eq!(service.may_have_run(), may_have_run);
        assert_eq!(service.service(), None);
    }
    let refused = CallError::Service(7);
    assert!(refused.may_have_run(), "the handler has answered");
    assert_eq!((refused.service(), refused.rpc()), (Some(&7), None));
}

#[test]
fn a_call_without_a_connection_tells_why_there_is_none() {
    let cause = Arc::new(io_error("the name is wrong"));
    let error = RpcError::not_connected(Arc::clone(&cause));
    assert_eq!(error, gone(false, GoneReason::Dial(Arc::clone(&cause))));
    let text = error.to_string();
    assert!(text.contains("did not run") && text.contains("the name is wrong"), "{text}");
    // Down to the system's error.
    let source = Error::source(&error).and_then(<dyn Error>::downcast_ref::<ConnectError>);
    assert_eq!(source, Some(&*cause));
    let system = source.and_then(Error::source).and_then(<dyn Error>::downcast_ref::<io::Error>);
    assert!(system.is_some_and(|system| system.to_string() == "the name is wrong"));
    // Of the error of a service, too.
    let error = CallError::<String>::from(error);
    assert!(Error::source(&error).is_some_and(<dyn Error>::is::<ConnectError>));

    // What lasts is a refusal.
    let full = ConnectError::Refused { address: "tcp://kv:1".into(), reason: "full".into() };
    let refused = RpcError::not_connected(Arc::new(full));
    assert!(matches!(refused, RpcError::Refused { .. }) && !refused.may_have_run());
    assert!(Error::source(&refused).is_some_and(<dyn Error>::is::<ConnectError>));
    assert!(refused.to_string().contains("full"));

    let lost = TransportFailure::new(FailureKind::Device("it was removed"), true);
    let lost = RpcError::from(lost);
    assert!(lost.to_string().contains("it was removed"), "{lost}");
    assert!(Error::source(&lost).is_some_and(<dyn Error>::is::<DeviceFailure>));
}

#[test]
fn messages_say_whether_the_call_may_have_run_and_advise_nothing_that_does_not_help() {
    let reasons = [
        GoneReason::Goodbye,
        GoneReason::Lost,
        GoneReason::ShuttingDown,
        GoneReason::Closed,
        GoneReason::Forked,
    ];
    for why in reasons {
        let text = gone(true, why.clone()).to_string();
        assert!(text.contains("it may have run") && text.contains(&why.to_string()), "{text}");
        // A polling client does not.
        assert!(!text.contains("dials"), "{text}");
    }
    for why in [GoneReason::Closed, GoneReason::Forked] {
        let text = gone(false, why).to_string();
        assert!(!text.contains("server is gone"), "{text}");
    }
    let texts = [true, false]
        .map(|may_have_run| RpcError::TooLarge { may_have_run, len: 2, max: 1 }.to_string());
    assert!(texts[0].contains("the response") && texts[1].contains("the request"), "{texts:?}");
}

#[test]
fn a_missed_deadline_says_where_the_call_waited() {
    let places = [
        (Waited::Nowhere, "before it was sent"),
        (Waited::ForWindow, "room in the window"),
        (Waited::ForDriver, "the thread that drives its connection"),
        (Waited::ForAnswer, "for its answer"),
        (Waited::InServerQueue, "in the server's queue"),
        (Waited::ForHandler, "while its handler ran"),
        (Waited::OnServerThread, "blocked a thread of a server"),
    ];
    for (waited, says) in places {
        let text = late(true, waited).to_string();
        assert!(text.contains(says) && text.contains("it may have run"), "{text}");
    }
}

#[test]
fn rpc_errors_stay_small() {
    // They are part of the result of every call.
    assert!(size_of::<RpcError>() <= 24);
}
