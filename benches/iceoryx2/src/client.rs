//! The client: keeps a window of requests outstanding, and times them.

use std::collections::VecDeque;
use std::io::{self, BufRead, Write};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use iceoryx2::pending_response::PendingResponse;
use iceoryx2::port::client::Client;
use iceoryx2::prelude::*;

use crate::Echo;
use crate::clock::Clock;

/// With many outstanding calls, one in this many is timed, as for the other peers.
const TIMED_EACH: u64 = 16;

/// The first calls of a turn wake up the server and are not counted; their answers are compared as a whole.
const UNCOUNTED: Duration = Duration::from_millis(1);

/// Empty turns after which the clock is read.
const TURNS_PER_CLOCK: u32 = 1024;

/// An answer that takes longer is an error.
const ANSWER_BOUND: Duration = Duration::from_secs(10);

/// How many bytes at each end of an answer are compared in turns that count.
const END_BYTES: usize = 64;

type Pending = PendingResponse<ipc::Service, [u8], (), [u8], ()>;

struct Calls {
    client: Client<ipc::Service, [u8], (), [u8], ()>,
    pattern: Vec<u8>,
    window: usize,
    clock: Clock,
    /// Oldest first, with the start of those that are timed.
    outstanding: VecDeque<(Pending, Option<u64>)>,
    /// Nanoseconds of single calls.
    samples: Vec<u32>,
    started: u64,
}

/// Does what the standard input says until it ends.
pub(crate) fn obey(echo: &Echo, size: usize, window: usize) -> Result<()> {
    let client = echo.client_builder().initial_max_slice_len(size).create().context("no client")?;
    let mut calls = Calls {
        client,
        pattern: (0..size).map(|index| (index % 251) as u8).collect(),
        window,
        clock: Clock::new(),
        outstanding: VecDeque::with_capacity(window),
        samples: Vec::with_capacity(1 << 22),
        started: 0,
    };
    calls.call_for(Duration::ZERO, true)?;
    println!("ready");
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (order, nanos) = line.split_once(' ').context("an order without a time")?;
        let time = Duration::from_nanos(nanos.parse()?);
        match order {
            "turn" => {
                calls.call_for(UNCOUNTED, true)?;
                calls.samples.clear();
                let (count, nanos) = calls.call_for(time, false)?;
                calls.report(count, nanos)?;
            }
            "after" => {
                calls.call_for(Duration::ZERO, true)?;
                thread::sleep(time);
                calls.samples.clear();
                let (count, nanos) = calls.call_for(Duration::ZERO, true)?;
                calls.report(count, nanos)?;
            }
            _ => bail!("an unknown order: {line}"),
        }
    }
    Ok(())
}

impl Calls {
    /// Calls until the time is over, at least once. Returns the number of calls and the nanoseconds that they took.
    fn call_for(&mut self, time: Duration, whole: bool) -> Result<(u64, u64)> {
        let begin = self.clock.stamp();
        let (end, give_up) = (self.clock.after(time), self.clock.after(time + ANSWER_BOUND));
        let (mut now, mut answered, mut idle) = (begin, 0, 0);
        loop {
            while (now < end || now == begin) && self.outstanding.len() < self.window {
                self.start()?;
            }
            if self.take(whole)? {
                answered += 1;
                if self.window == 1 || answered % TIMED_EACH == 0 {
                    now = self.clock.stamp();
                }
            } else {
                idle += 1;
            }
            if idle == TURNS_PER_CLOCK {
                (idle, now) = (0, self.clock.stamp());
                ensure!(now < give_up, "an answer did not come within {ANSWER_BOUND:?}");
            }
            if now >= end && self.outstanding.is_empty() {
                return Ok((answered, self.clock.nanos_between(begin, self.clock.stamp())));
            }
        }
    }

    fn start(&mut self) -> Result<()> {
        let is_timed = self.window == 1 || self.started.is_multiple_of(TIMED_EACH);
        let before = is_timed.then(|| self.clock.stamp());
        let request = self.client.loan_slice_uninit(self.pattern.len())?;
        let pending = request.write_from_slice(&self.pattern).send()?;
        self.outstanding.push_back((pending, before));
        self.started += 1;
        Ok(())
    }

    /// Takes the oldest call's answer if it is there.
    fn take(&mut self, whole: bool) -> Result<bool> {
        let Some((pending, before)) = self.outstanding.front() else { return Ok(false) };
        let Some(reply) = pending.receive()? else { return Ok(false) };
        if let Some(before) = *before {
            let nanos = self.clock.nanos_between(before, self.clock.stamp());
            self.samples.push(nanos.try_into().unwrap_or(u32::MAX));
        }
        let (reply, pattern) = (reply.payload(), &self.pattern[..]);
        let is_right = if whole || pattern.len() <= 2 * END_BYTES {
            reply == pattern
        } else {
            reply.len() == pattern.len()
                && reply.first_chunk::<END_BYTES>() == pattern.first_chunk()
                && reply.last_chunk::<END_BYTES>() == pattern.last_chunk()
        };
        ensure!(is_right, "an answer differs from what was sent");
        self.outstanding.pop_front();
        Ok(true)
    }

    fn report(&self, count: u64, nanos: u64) -> Result<()> {
        let mut output = io::stdout().lock();
        writeln!(output, "done {count} {nanos} {}", self.samples.len())?;
        let bytes: Vec<u8> = self.samples.iter().flat_map(|sample| sample.to_ne_bytes()).collect();
        output.write_all(&bytes)?;
        output.flush()?;
        Ok(())
    }
}
