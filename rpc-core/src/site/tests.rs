//! What transports share at a site, and that no wake-up is lost. Bounds are far below [`LONGEST_SLEEP`].

use super::*;
use crate::time::{PollAt, Progress};
use crate::transport::Armed;
use core::cell::Cell;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant as SystemTime;

/// A sleep that takes this long has missed its wake-up.
const BOUND: Duration = Duration::from_secs(30);

#[derive(Debug, PartialEq)]
struct Number(u32);

impl SiteResource for Number {}

#[derive(Default)]
struct Turns(AtomicU32);

impl SiteResource for Turns {
    fn begin_turn(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn end_turn(&self) {
        self.0.fetch_add(10, Ordering::Relaxed);
    }
}

/// Announces events by an eventfd.
struct Events {
    number: u32,
    fd: OwnedFd,
}

impl SiteResource for Events {
    fn events(&self) -> Option<&dyn EventChannel> {
        Some(self)
    }
}

impl EventChannel for Events {
    fn wait(&self, timeout: Duration) {
        let timeout = Timespec::try_from(timeout).expect("no longer than a minute");
        let mut descriptors = [PollFd::new(&self.fd, PollFlags::IN)];
        if rustix::event::poll(&mut descriptors, Some(&timeout)).expect("polls") > 0 {
            // Another thread may have taken the event.
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }

    fn wake(&self) {
        rustix::io::write(&self.fd, &1_u64.to_ne_bytes()).expect("counts");
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Events {
    fn is_empty(&self) -> bool {
        let mut descriptors = [PollFd::new(&self.fd, PollFlags::IN)];
        rustix::event::poll(&mut descriptors, Some(&Timespec::default())).expect("polls") == 0
    }
}

fn number(site: &Site, wanted: u32) -> Arc<Number> {
    site.share(|it| *it == Number(wanted), || Ok::<_, ()>(Number(wanted))).expect("made")
}

fn events(site: &Site, number: u32) -> Arc<Events> {
    let make = || eventfd(0, EventfdFlags::NONBLOCK).map(|fd| Events { number, fd });
    site.share(|it: &Events| it.number == number, make).expect("made")
}

/// Sleeps without a bound of its own, and checks that something ended the sleep.
fn sleep_until_woken(asleep: Asleep) {
    let start = SystemTime::now();
    asleep.sleep(None);
    assert!(start.elapsed() < BOUND, "the wake-up was lost");
}

/// Runs `wake` while this many other threads sleep at the site. Each of them wakes.
fn wake_sleeping_threads(site: &Site, threads: usize, wake: impl Fn()) {
    let is_awake = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                sleep_until_woken(site.fall_asleep());
                is_awake.fetch_add(1, Ordering::SeqCst);
            });
        }
        let start = SystemTime::now();
        // With several sleepers, some may have woken on their own before the last one sleeps.
        while site.lock().sleepers.len() + (is_awake.load(Ordering::SeqCst) as usize) < threads {
            assert!(start.elapsed() < BOUND, "the threads do not sleep");
            thread::yield_now();
        }
        wake();
    });
}

#[test]
fn transports_share_what_has_the_type_and_fits() {
    let site = Site::new();
    let seven = number(&site, 7);
    assert!(Arc::ptr_eq(&seven, &number(&site.clone(), 7)));
    assert!(!Arc::ptr_eq(&seven, &number(&site, 8)));
    assert!(!Arc::ptr_eq(&seven, &number(&Site::new(), 7)), "another site shares nothing");
    let turns = site.share(|_: &Turns| true, || Ok::<_, ()>(Turns::default()));
    assert_eq!(turns.expect("made").0.load(Ordering::Relaxed), 0);
}

#[test]
fn a_resource_is_dropped_with_its_last_user() {
    let site = Site::new();
    let seven = number(&site, 7);
    let user = Arc::clone(&seven);
    drop(seven);
    let is_made = Cell::new(false);
    let make = || Ok::<_, ()>(Number(is_made.replace(true).into()));
    drop(site.share(|_: &Number| true, make));
    assert!(!is_made.get(), "it is still in use");
    drop(user);
    drop(site.share(|_: &Number| true, make));
    assert!(is_made.get());
    assert_eq!(site.lock().resources.len(), 1, "dropped resources are forgotten");
}

/// Its end takes the lock of its site. It loses its last user while it is asked for its events.
struct WakesAtEnd {
    site: Site,
    last: Arc<Mutex<Option<Arc<WakesAtEnd>>>>,
}

impl Drop for WakesAtEnd {
    fn drop(&mut self) {
        self.site.wake();
    }
}

impl SiteResource for WakesAtEnd {
    fn events(&self) -> Option<&dyn EventChannel> {
        let last = self.last.lock().expect("no panic").take();
        drop(last);
        None
    }
}

#[test]
fn a_resource_that_loses_its_last_user_meanwhile_may_use_the_site_at_its_end() {
    let (done, is_done) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let (site, last) = (Site::new(), Arc::default());
        let make = || Ok::<_, ()>(WakesAtEnd { site: site.clone(), last: Arc::clone(&last) });
        let keep =
            || *last.lock().expect("no panic") = site.share(|_: &WakesAtEnd| false, make).ok();
        // As another thread drops it at just this moment.
        keep();
        let fits = |it: &WakesAtEnd| it.events().is_some();
        assert!(site.share(fits, || Err(())).is_err());
        // Its end has woken the site.
        site.fall_asleep().sleep(Some(site.now()));
        keep();
        site.fall_asleep().sleep(Some(site.now()));
        assert!(site.lock().resources.iter().all(|it| it.strong_count() == 0), "it was asked");
        let _ = done.send(());
    });
    assert!(is_done.recv_timeout(BOUND).is_ok(), "it waits for a lock that it has itself");
}

#[test]
fn what_cannot_be_made_is_not_kept() {
    let site = Site::new();
    assert_eq!(site.share(|_: &Number| true, || Err("no")).err(), Some("no"));
    assert_eq!(*number(&site, 1), Number(1));
}

#[test]
fn turns_begin_and_end_together() {
    let site = Site::new();
    let turns = site.share(|_: &Turns| true, || Ok::<_, ()>(Turns::default())).expect("made");
    let during = site.together(|| turns.0.load(Ordering::Relaxed));
    assert_eq!((during, turns.0.load(Ordering::Relaxed)), (1, 11));
    let panicking = || site.together(|| panic!("in a turn"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panicking)).is_err());
    assert_eq!(turns.0.load(Ordering::Relaxed), 22, "a panic ends the turn as well");
}

#[test]
fn a_wake_before_the_sleep_is_not_lost() {
    let site = Site::new();
    site.wake();
    sleep_until_woken(site.fall_asleep());
    site.waker().wake();
    sleep_until_woken(site.fall_asleep());
}

#[test]
fn a_wake_between_the_announcement_and_the_sleep_is_not_lost() {
    let site = Site::new();
    let asleep = site.fall_asleep();
    site.rouse();
    sleep_until_woken(asleep);
    let _events = events(&site, 1);
    let asleep = site.fall_asleep();
    site.rouse();
    sleep_until_woken(asleep);
}

#[test]
fn rousing_a_thread_that_is_awake_leaves_no_wake_up_behind() {
    let site = Site::new();
    site.rouse();
    drop(site.fall_asleep());
    site.rouse();
    assert!(!site.lock().is_woken);
}

#[test]
fn a_sleep_ends_at_its_time() {
    let site = Site::new();
    let until = site.now() + Duration::from_millis(5);
    while site.now() < until {
        // The system may end a sleep early.
        site.fall_asleep().sleep(Some(until));
    }
    assert!(site.lock().sleepers.is_empty());
}

#[test]
fn another_thread_wakes_a_sleeper_with_and_without_an_event_channel() {
    let site = Site::new();
    wake_sleeping_threads(&site, 1, || site.rouse());
    let _one = events(&site, 1);
    wake_sleeping_threads(&site, 1, || site.rouse());
    let _two = events(&site, 2);
    wake_sleeping_threads(&site, 1, || site.rouse());
}

#[test]
fn an_event_of_any_channel_ends_the_sleep_and_is_taken() {
    let site = Site::new();
    let channels = [events(&site, 1), events(&site, 2)];
    for channel in &channels {
        wake_sleeping_threads(&site, 1, || channel.wake());
        assert!(channels.iter().all(|channel| channel.is_empty()));
        // An event that came before the sleep ends it too.
        channel.wake();
        sleep_until_woken(site.fall_asleep());
        assert!(channels.iter().all(|channel| channel.is_empty()));
    }
}

#[test]
fn a_wake_and_an_event_reach_both_threads_that_sleep_at_a_site() {
    let site = Site::new();
    wake_sleeping_threads(&site, 2, || site.wake());
    let events = events(&site, 1);
    for _ in 0..100 {
        wake_sleeping_threads(&site, 2, || site.wake());
        wake_sleeping_threads(&site, 2, || events.wake());
    }
    assert!(site.lock().sleepers.is_empty());
}

#[test]
fn a_driven_site_has_the_callers_clock_and_wakes_its_event_channels() {
    struct Stopped;
    impl Clock for Stopped {
        fn now(&self) -> Instant {
            Instant::from_nanos(7)
        }
    }
    let site = Site::driven(Arc::new(Stopped));
    assert_eq!(site.now(), Instant::from_nanos(7));
    let channels = [events(&site, 1), events(&site, 2)];
    site.rouse();
    assert!(channels.iter().all(|channel| channel.is_empty()), "the thread has not fallen asleep");
    let asleep = site.fall_asleep();
    site.rouse();
    assert!(channels.iter().all(|channel| !channel.is_empty()));
    drop(asleep);
    assert!(site.is_same(&site.clone()) && !site.is_same(&Site::new()));
}

/// Wants to be armed as it says, and counts its turns.
struct Beside {
    armed: Armed,
    turns: AtomicU32,
}

impl Companion for Beside {
    fn turn(&self, now: Instant) -> Progress {
        let worked = 1 + self.turns.fetch_add(1, Ordering::Relaxed);
        Progress { worked, next: PollAt::At(now), scanned: 0 }
    }

    fn arm(&self) -> Armed {
        self.armed
    }
}

#[test]
fn a_companion_has_turns_as_long_as_it_lives() {
    let site = Site::new();
    let at = Instant::from_nanos(7);
    assert!(!site.has_companions() && site.arm_companions() == Armed::ByWaker);
    let beside = |armed| Arc::new(Beside { armed, turns: AtomicU32::new(0) });
    let attach = |beside: &Arc<Beside>| {
        let companion: Arc<dyn Companion> = beside.clone();
        site.attach(&companion);
    };
    let [idle, waits, works] = [Armed::ByWaker, Armed::AtSite, Armed::No].map(beside);
    for _ in 0..2 {
        attach(&idle);
    }
    let progress = site.turn_companions(at);
    assert_eq!(progress, Progress { worked: 1, next: PollAt::At(at), scanned: 0 });
    assert_eq!(site.arm_companions(), Armed::ByWaker);
    attach(&waits);
    assert_eq!(site.arm_companions(), Armed::AtSite);
    attach(&works);
    assert_eq!(site.arm_companions(), Armed::No);
    drop((waits, works));
    assert_eq!((site.arm_companions(), site.turn_companions(at).worked), (Armed::ByWaker, 2));
}
