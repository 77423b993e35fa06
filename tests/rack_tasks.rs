//! Thousands of tasks on one client of a simulated rack, some of which give up at any point.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use farcall::rack::{Host, Rack};
use farcall::{Call, ChannelOptions, RpcError, Server};
use futures_util::future::join_all;

const TASKS: u32 = 2_000;

/// Calls that were given up count until the next turn.
const MAX_CALLS: u32 = 2 * TASKS;

/// Backends whose clients differ in how requests leave and responses come.
const BACKENDS: [&str; 5] = ["write_imm", "rfp", "scale", "datagram", "send_recv"];

#[farcall::service]
trait Echo {
    /// Gives back the number.
    fn echo(&self, number: u32) -> u32;
    /// Never answers.
    async fn hold(&self);
    /// The number of calls that are held.
    fn held(&self) -> u32;
}

#[derive(Clone, Default)]
struct Service(Arc<AtomicU32>);

/// A held call.
struct Held(Arc<AtomicU32>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Echo for Service {
    fn echo(&self, number: u32) -> u32 {
        number
    }

    async fn hold(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        let _held = Held(self.0.clone());
        std::future::pending().await
    }

    fn held(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

type Pending<T> = Call<Result<T, RpcError>>;

/// Polls a call once. Whether it has ended.
async fn poll_once<T>(call: &mut Pending<T>) -> bool {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *call).poll(context).is_ready())).await
}

/// Gives up a call at one of several points.
async fn give_up<T>(host: &Host, mut call: Pending<T>, how: u32) {
    let wait = match how % 6 {
        // It is never sent.
        0 => return,
        // It is submitted, and not sent yet.
        1 => Duration::ZERO,
        // It is on its way, or waits for room in the window.
        2 => Duration::from_nanos(700),
        3 => Duration::from_micros(20),
        // Its answer has come, or soon will.
        4 => Duration::from_millis(1),
        _ => {
            // Its waker is replaced by that of another poll, which nobody heeds.
            let mut context = Context::from_waker(Waker::noop());
            if pin!(&mut call).poll(&mut context).is_ready() {
                return;
            }
            Duration::from_nanos(300)
        }
    };
    if !poll_once(&mut call).await && !wait.is_zero() {
        host.sleep(wait).await;
    }
}

async fn task(host: Host, client: EchoClient, number: u32) {
    for round in 0..3 {
        let how = number.wrapping_mul(7) + round;
        match how % 4 {
            0 => give_up(&host, client.echo(number), how / 4).await,
            1 => give_up(&host, client.hold(), how / 4).await,
            _ => {}
        }
        let number = number + round;
        assert_eq!(client.echo(number).await, Ok(number));
    }
}

/// What the tasks leave behind, and when they have ended.
fn run(backend: &str, seed: u64) -> Duration {
    let mut rack = Rack::new(seed);
    let (_, client) = (rack.add_node(), rack.add_node());
    let builder = Server::builder().service(EchoServer::new(Service::default()));
    let address = format!("sim://1/echo?backend={backend}");
    let _server = rack.serve(&address, builder).unwrap();
    let ended = Rc::new(RefCell::new(None));
    let noted = ended.clone();
    rack.run(client, async move |host: Host| {
        let options = ChannelOptions::default().max_calls(MAX_CALLS as usize);
        let client: EchoClient = host.connect_with(&address, &options).await.unwrap();
        join_all((0..TASKS).map(|number| task(host.clone(), client.clone(), number))).await;
        *noted.borrow_mut() = Some(host.now());
        // The server hears of all that were given up.
        host.sleep(Duration::from_millis(100)).await;
        assert_eq!(client.held().await, Ok(0));
        // Every call can be made again, at once.
        let all = join_all((0..MAX_CALLS).map(|number| client.echo(number))).await;
        assert!(all.into_iter().eq((0..MAX_CALLS).map(Ok)));
    });
    ended.take().expect("all tasks end")
}

#[test]
fn thousands_of_tasks_share_a_client_while_some_give_up_at_any_point() {
    for backend in BACKENDS {
        let ended = run(backend, 5);
        assert!(ended < Duration::from_millis(200), "{backend}: {ended:?}");
    }
}

#[test]
fn their_run_depends_on_the_seed_alone() {
    assert_eq!(run("write_imm", 6), run("write_imm", 6));
}
