//! Deadlines and cancellation, as a handler sees them.
//!
//! ```sh
//! cargo run --release --example deadline
//! ```

use std::error::Error;
use std::time::Duration;

use farcall::{CallContext, CallError, CancelPolicy, RpcError, RunningServer, Server, Shape};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// How long a report takes.
const REPORT: Duration = Duration::from_secs(60);

#[derive(Debug, PartialEq, thiserror::Error, Serialize, Deserialize, Shape)]
#[error("a report takes {} s", REPORT.as_secs())]
struct TooLittleTime;

#[farcall::service]
trait Press {
    /// Refuses at once what could not be ready in time.
    fn report(&self) -> Result<String, TooLittleTime>;

    /// The next issue. Waits for it.
    async fn next_issue(&self) -> u64;

    /// Prints in steps, and looks after each whether anybody still waits.
    async fn print(&self) -> u64;
}

/// What handlers tell the rest of this program.
#[derive(Debug, PartialEq)]
enum Event {
    Begun,
    Dropped,
    Stopped,
}

struct House(UnboundedSender<Event>);

/// Tells when the handler that has it is dropped.
struct TellDrop<'h>(&'h House);

impl Drop for TellDrop<'_> {
    fn drop(&mut self) {
        self.0.tell(Event::Dropped);
    }
}

impl House {
    fn tell(&self, event: Event) {
        // Nobody listens any more when the program ends.
        let _ = self.0.send(event);
    }
}

impl Press for House {
    fn report(&self) -> Result<String, TooLittleTime> {
        // A call without a deadline has all the time there is.
        let left = CallContext::current().and_then(|call| call.remaining());
        if left.is_some_and(|left| left < REPORT) {
            return Err(TooLittleTime);
        }
        Ok("all is well".to_owned())
    }

    async fn next_issue(&self) -> u64 {
        let _tell_drop = TellDrop(self);
        self.tell(Event::Begun);
        std::future::pending().await
    }

    async fn print(&self) -> u64 {
        self.tell(Event::Begun);
        let mut pages = 0;
        // The context is that of the moment: ask again after each `.await`.
        while !CallContext::current().is_some_and(|call| call.is_cancelled()) {
            pages += 1;
            tokio::task::yield_now().await;
        }
        self.tell(Event::Stopped);
        pages
    }
}

fn serve(
    policy: CancelPolicy,
) -> Result<(RunningServer, UnboundedReceiver<Event>), Box<dyn Error>> {
    let (tell, events) = unbounded_channel();
    let server = Server::builder()
        .service(PressServer::new(House(tell)))
        .on_cancel(policy)
        .listen("rdma://127.0.0.1:0?device=shm")?;
    Ok((server, events))
}

/// The next event, which comes soon.
async fn next(events: &mut UnboundedReceiver<Event>) -> Result<Event, Box<dyn Error>> {
    let event = tokio::time::timeout(Duration::from_secs(10), events.recv()).await?;
    event.ok_or_else(|| "the server has ended".into())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (server, mut events) = serve(CancelPolicy::Abort)?;
    let press = PressClient::connect(server.address()).await?;

    // The deadline travels with the call: 10 s by default, and `timeout` sets another one.
    assert_eq!(press.report().await, Err(CallError::Service(TooLittleTime)));
    println!("with more time: {}", press.report().timeout(2 * REPORT).await?);

    // A deadline ends the call at the client, and drops the handler at the server.
    let late = press.next_issue().timeout(Duration::from_millis(300)).await;
    assert!(matches!(late, Err(RpcError::DeadlineExceeded { .. })), "{late:?}");
    println!("{}", late.unwrap_err());
    assert_eq!(next(&mut events).await?, Event::Begun);
    assert_eq!(next(&mut events).await?, Event::Dropped);

    // So does dropping the call, as `select!` does with what has lost.
    tokio::select! {
        issue = press.next_issue() => println!("{issue:?}"),
        begun = next(&mut events) => assert_eq!(begun?, Event::Begun),
    }
    assert_eq!(next(&mut events).await?, Event::Dropped);
    println!("the handler of a call that was given up is dropped");
    tokio::task::spawn_blocking(|| server.shutdown()).await?;

    // With `CancelPolicy::Finish`, handlers go on and can ask.
    let (server, mut events) = serve(CancelPolicy::Finish)?;
    let press = PressClient::connect(server.address()).await?;
    tokio::select! {
        pages = press.print() => println!("{pages:?}"),
        begun = next(&mut events) => assert_eq!(begun?, Event::Begun),
    }
    assert_eq!(next(&mut events).await?, Event::Stopped);
    println!("or it stops by itself");
    tokio::task::spawn_blocking(|| server.shutdown()).await?;
    Ok(())
}

#[test]
fn it_runs() -> Result<(), Box<dyn Error>> {
    main()
}
