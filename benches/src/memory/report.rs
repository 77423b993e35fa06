//! The report of `memory`. Scripts read the fields by name: only add fields.

use std::fmt::Write as _;

use serde::Serialize;

use super::holders::Revoke;
use super::{Kind, LONG_BYTES, Pattern};

/// One run of `memory`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `memory`.
    pub bench: &'static str,
    /// The server's core and the client's.
    pub cores: [usize; 2],
    /// One for each pattern of operations.
    pub cells: Vec<Cell>,
    /// The end of access for many at once.
    pub revoke: Revoke,
}

/// Contenders that alternated. Their ratios are to the first, the bare verb.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// `read` or `write`.
    pub operation: &'static str,
    /// Bytes of each operation.
    pub size: usize,
    /// Operations under one doorbell.
    pub batch: usize,
    /// What memcpy took for so many bytes on the client's core, in nanoseconds.
    pub memcpy_ns: f64,
    /// One for each contender.
    pub rows: Vec<Row>,
}

/// One contender.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// The median of its turns: nanoseconds of the operations of one doorbell.
    pub ns: f64,
}

impl Row {
    pub(super) fn of(name: &'static str, mut turns: Vec<f64>) -> Row {
        turns.sort_by(f64::total_cmp);
        Row { name, ns: turns.get(turns.len() / 2).copied().unwrap_or(0.0) }
    }
}

impl Cell {
    pub(super) fn new(pattern: Pattern, memcpy_ns: f64, rows: Vec<Row>) -> Cell {
        let operation = match pattern.kind {
            Kind::Read => "read",
            Kind::Write => "write",
        };
        Cell { operation, size: pattern.size, batch: pattern.batch, memcpy_ns, rows }
    }
}

impl Report {
    /// Formats the tables.
    pub fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        for Cell { operation, size, batch, memcpy_ns, rows } in &self.cells {
            let _ = writeln!(text, "{operation} of {size} B, {batch} under one doorbell");
            let verb = rows.first().map_or(0.0, |row| row.ns);
            for Row { name, ns } in rows {
                let _ = write!(text, "  {name:<12} {ns:>9.0} ns  {:>6.2} x the verb", ns / verb);
                let _ = match *size >= LONG_BYTES {
                    true => writeln!(text, "  {:>6.2} x memcpy", ns / memcpy_ns),
                    false => writeln!(text),
                };
            }
            if *size >= LONG_BYTES {
                let _ = writeln!(text, "  memcpy       {memcpy_ns:>9.0} ns");
            }
        }
        let Revoke { holders, took_ns, bytes_per_lane } = &self.revoke;
        let took_ms = *took_ns as f64 / 1e6;
        let kib = bytes_per_lane >> 10;
        let _ = writeln!(
            text,
            "revoke with {holders} holders: {took_ms:.2} ms; {kib} KiB for each lane, both ends"
        );
        text
    }
}
