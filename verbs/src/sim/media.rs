//! A node's persistent memory: its visible bytes, and those that survive a power failure.
//!
//! Each region has pages, which programs and the NIC use like any others, and durable bytes. In between, only
//! *addresses* of changes are recorded: lines in the queue of the PCIe root complex, and dirty lines of a
//! cache. Writing a line back copies its visible bytes at that time. Memory may be in that state, as a cache
//! may write a line back at any time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Weak};

use foldhash::fast::FixedState;

use super::config::nanos;
use super::durability::Durability;
use super::memory::Pages;
use crate::VerbsError;
use crate::dice::Dice;

/// The unit of caches and memory controllers.
const LINE_BYTES: u64 = 64;

/// The unit that is stored whole or not at all.
const WORD_BYTES: usize = 8;

/// A range of a persistent region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) region: u32,
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Span {
    /// Its lines.
    fn lines(self) -> impl Iterator<Item = Line> {
        let end = (self.start + self.len).div_ceil(LINE_BYTES);
        let first = if self.len == 0 { end } else { self.start / LINE_BYTES };
        (first..end).map(move |number| Line { region: self.region, number })
    }

    fn meets(self, other: Span) -> bool {
        let (end, other_end) = (self.start + self.len, other.start + other.len);
        // By lines, because lines are written back.
        let line = |byte: u64| byte / LINE_BYTES;
        self.region == other.region
            && line(self.start) * LINE_BYTES < other_end
            && line(other.start) * LINE_BYTES < end
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Line {
    region: u32,
    number: u64,
}

#[derive(Debug)]
struct Region {
    durable: Vec<u8>,
    /// The visible bytes, if the region was opened since the node started.
    seen: Option<Arc<Pages>>,
    /// The current opening.
    open: Weak<Pages>,
}

/// The persistent memory of one node.
#[derive(Debug, Default)]
pub(super) struct Media {
    regions: Vec<Region>,
    by_name: BTreeMap<String, u32>,
    /// What the NIC has written, and until when it is in the PCIe queue: first in, first out.
    queue: VecDeque<(Span, u64)>,
    dirty: Dirty,
}

impl Media {
    /// Opens the region of that name, or creates it. Returns its number, and its pages for this opening.
    pub(super) fn open(&mut self, name: &str, len: usize) -> Result<(u32, Arc<Pages>), VerbsError> {
        let refused = |problem: String| VerbsError::Persistent { name: name.to_owned(), problem };
        let known = self.by_name.get(name).copied();
        let number = match known {
            Some(number) => number,
            None => {
                let number = self.regions.len() as u32;
                self.regions.push(Region { durable: vec![0; len], seen: None, open: Weak::new() });
                self.by_name.insert(name.to_owned(), number);
                number
            }
        };
        let region = &mut self.regions[number as usize];
        if region.durable.len() != len {
            let there = region.durable.len();
            return Err(refused(format!("it has {there} bytes; open it with that length")));
        }
        if region.open.strong_count() > 0 {
            return Err(refused("it is open already; drop the other opening first".to_owned()));
        }
        let seen = match &region.seen {
            Some(seen) => Arc::clone(seen),
            None => {
                let fresh = Arc::new(Pages::new(len)?);
                if known.is_some() {
                    fresh.fill(&region.durable);
                }
                Arc::clone(region.seen.insert(fresh))
            }
        };
        let opening = Arc::new(Pages::opening(seen));
        region.open = Arc::downgrade(&opening);
        Ok((number, opening))
    }

    /// Whether no region was ever opened.
    pub(super) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Records a visible write of the NIC.
    pub(super) fn record_nic_write(
        &mut self,
        span: Span,
        how: &Durability,
        now_ns: u64,
        dice: &mut Dice,
    ) {
        self.settle(how, now_ns, dice);
        let longest_ns = nanos(how.queue);
        let mut until_ns = now_ns;
        if longest_ns > 0 {
            until_ns = until_ns.saturating_add(dice.below(longest_ns.saturating_add(1)));
        }
        let behind_ns = self.queue.back().map_or(0, |(_, until_ns)| *until_ns);
        self.queue.push_back((span, until_ns.max(behind_ns)));
    }

    /// Records a store of a CPU.
    pub(super) fn record_store(&mut self, span: Span, how: &Durability, dice: &mut Dice) {
        for line in span.lines() {
            if how.eadr {
                self.write_back(line);
            } else {
                self.make_dirty(line, how, dice);
            }
        }
    }

    /// Lets writes leave the PCIe queue whose time there is over.
    pub(super) fn settle(&mut self, how: &Durability, now_ns: u64, dice: &mut Dice) {
        while let Some((span, _)) = self.queue.pop_front_if(|(_, until_ns)| *until_ns <= now_ns) {
            for line in span.lines() {
                self.leave_queue(line, how, dice);
            }
        }
    }

    /// Empties the PCIe queue: a read of memory pushes the writes before it (PCI Express Base Specification,
    /// section 2.4.1: a read request does not pass a posted write).
    pub(super) fn push_queue(&mut self, how: &Durability, dice: &mut Dice) {
        self.settle(how, u64::MAX, dice);
    }

    fn leave_queue(&mut self, line: Line, how: &Durability, dice: &mut Dice) {
        if how.behind_the_queue() {
            self.write_back(line);
        } else {
            self.make_dirty(line, how, dice);
        }
    }

    fn make_dirty(&mut self, line: Line, how: &Durability, dice: &mut Dice) {
        self.dirty.insert(line);
        if self.dirty.len() > how.dirty_lines {
            let index = dice.below(self.dirty.len() as u64) as usize;
            let evicted = self.dirty.at(index);
            self.write_back(evicted);
        }
    }

    /// Makes a line durable with its visible bytes.
    fn write_back(&mut self, line: Line) {
        self.dirty.remove(line);
        self.copy(line, |_| true);
    }

    /// Copies the words of a line for whose index `survives` is true.
    fn copy(&mut self, line: Line, survives: impl Fn(usize) -> bool) {
        let region = &mut self.regions[line.region as usize];
        let Some(seen) = &region.seen else { return };
        let start = (line.number * LINE_BYTES) as usize;
        let end = (start + LINE_BYTES as usize).min(region.durable.len());
        let mut bytes = [0; LINE_BYTES as usize];
        let bytes = &mut bytes[..end - start];
        seen.copy_out(start as u64, bytes);
        let durable = &mut region.durable[start..end];
        let words = durable.chunks_mut(WORD_BYTES).zip(bytes.chunks(WORD_BYTES));
        for (_, (durable, seen)) in words.enumerate().filter(|(place, _)| survives(*place)) {
            durable.copy_from_slice(seen);
        }
    }

    /// Makes the visible bytes of this range durable. Returns the number of dirty lines.
    pub(super) fn persist(&mut self, span: Span, how: &Durability, dice: &mut Dice) -> u64 {
        // Everything ahead of the last write there leaves the queue first.
        if let Some(last) = self.queue.iter().rposition(|(queued, _)| queued.meets(span)) {
            let until_ns = self.queue[last].1;
            self.settle(how, until_ns, dice);
        }
        let mut dirty = 0;
        for line in span.lines() {
            if self.dirty.contains(line) {
                dirty += 1;
                self.write_back(line);
            }
        }
        dirty
    }

    /// Handles a power failure: durable bytes survive. A random front part of the PCIe queue gets through; each
    /// dirty line is written back, or not, or in part. Returns the number of lines that were not durable.
    pub(super) fn lose_power(&mut self, how: &Durability, now_ns: u64, dice: &mut Dice) -> u64 {
        if how.battery {
            self.stop();
            return 0;
        }
        self.settle(how, now_ns, dice);
        let queued: Vec<Line> = self.queue.drain(..).flat_map(|(span, _)| span.lines()).collect();
        let mut at_stake = queued.len() as u64;
        if !queued.is_empty() {
            let through = dice.below(queued.len() as u64 + 1) as usize;
            for line in &queued[..through] {
                self.leave_queue(*line, how, dice);
            }
        }
        at_stake += self.dirty.len() as u64;
        for line in self.dirty.take() {
            match dice.below(4) {
                0 | 1 => {}
                2 => self.copy(line, |_| true),
                _ => {
                    let words = dice.word();
                    self.copy(line, |place| words >> place & 1 == 1);
                }
            }
        }
        self.close();
        at_stake
    }

    /// Stops the node with its power on, or on a battery: caches and queues are written back.
    pub(super) fn stop(&mut self) {
        self.queue.clear();
        self.dirty.take();
        for region in &mut self.regions {
            if let Some(seen) = &region.seen {
                seen.copy_out(0, &mut region.durable);
            }
        }
        self.close();
    }

    fn close(&mut self) {
        for region in &mut self.regions {
            region.seen = None;
            region.open = Weak::new();
        }
    }
}

/// The dirty lines of the caches. A line can be chosen by index.
#[derive(Debug, Default)]
struct Dirty {
    lines: Vec<Line>,
    places: HashMap<Line, usize, FixedState>,
}

impl Dirty {
    fn len(&self) -> usize {
        self.lines.len()
    }

    fn at(&self, index: usize) -> Line {
        self.lines[index]
    }

    fn contains(&self, line: Line) -> bool {
        self.places.contains_key(&line)
    }

    fn insert(&mut self, line: Line) {
        if let std::collections::hash_map::Entry::Vacant(place) = self.places.entry(line) {
            place.insert(self.lines.len());
            self.lines.push(line);
        }
    }

    fn remove(&mut self, line: Line) {
        let Some(place) = self.places.remove(&line) else { return };
        self.lines.swap_remove(place);
        if let Some(moved) = self.lines.get(place) {
            self.places.insert(*moved, place);
        }
    }

    /// Takes all lines, in the order of insertion.
    fn take(&mut self) -> Vec<Line> {
        self.places.clear();
        std::mem::take(&mut self.lines)
    }
}
