//! The report of a run: one line of JSON, or a table.

use std::fmt::Write as _;

use serde::Serialize;

/// A run of `echo`. Scripts depend on the fields' names and order: only add fields, at the end.
#[derive(Debug, Clone, Serialize)]
pub struct EchoReport {
    /// Always `echo`.
    pub bench: &'static str,
    /// The device under the backend.
    pub device: String,
    /// The backend under the stubs.
    pub backend: String,
    /// Bytes of the argument, and of the result.
    pub size: usize,
    /// Calls that each client keeps outstanding.
    pub window: usize,
    /// Connections, all driven by one thread.
    pub clients: usize,
    /// Calls answered in all.
    pub calls: u64,
    /// Median of a call's time from start to result.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Calls per second.
    pub rate: f64,
    /// Median round trip of a cache line bounced between the same cores in the same run.
    pub limit_ns: u64,
    /// `threads` or `processes`: where the server runs.
    pub mode: &'static str,
    /// The server's core, then the clients'.
    pub cores: [usize; 2],
    /// `p50_ns / limit_ns`.
    pub ratio: f64,
    /// Bytes per second in one direction.
    pub bandwidth: f64,
    /// Bytes per second that memcpy moved between buffers of this size in the same run.
    pub memcpy_bandwidth: f64,
    /// `bandwidth / memcpy_bandwidth`.
    pub bandwidth_ratio: f64,
    /// Small messages with several outstanding: lines per second that two cores exchange and answer with as many
    /// outstanding, if they only copy.
    pub line_rate: Option<f64>,
    /// `rate / line_rate`.
    pub rate_ratio: Option<f64>,
    /// Large messages: bytes per second in one direction that two cores copy back and forth with as many buffers
    /// outstanding, with two copies each.
    pub copy_bandwidth: Option<f64>,
    /// `bandwidth / copy_bandwidth`.
    pub copy_ratio: Option<f64>,
}

/// A run of `limit`.
#[derive(Debug, Clone, Serialize)]
pub struct LimitReport {
    /// Always `limit`.
    pub bench: &'static str,
    /// Bytes of each buffer that was copied.
    pub size: usize,
    /// The two cores.
    pub cores: [usize; 2],
    /// Median round trip of the bounced cache line.
    pub limit_ns: u64,
    /// 99th percentile.
    pub limit_p99_ns: u64,
    /// Bytes per second that memcpy moved between two buffers of this size.
    pub memcpy_bandwidth: f64,
    /// Lines per second that were exchanged and answered, with 32 outstanding.
    pub line_rate: f64,
    /// Bytes per second in one direction, copied back and forth with 2 buffers outstanding.
    pub copy_bandwidth: f64,
}

impl EchoReport {
    /// Formats the table.
    pub fn table(&self) -> String {
        let mut rows = vec![
            ("latency p50", format!("{} ns  ({:.2} x the limit)", self.p50_ns, self.ratio)),
            ("latency p99", format!("{} ns", self.p99_ns)),
            ("latency p99.9", format!("{} ns", self.p999_ns)),
            ("rate", format!("{:.3} M calls/s", self.rate / 1e6)),
        ];
        rows.push(("limit", format!("{} ns  (bounced cache line)", self.limit_ns)));
        let ratio = self.bandwidth_ratio;
        rows.push(("bandwidth", format!("{}  ({ratio:.2} x memcpy)", rate(self.bandwidth))));
        rows.push(("memcpy", rate(self.memcpy_bandwidth)));
        if let (Some(lines), Some(ratio)) = (self.line_rate, self.rate_ratio) {
            rows.push(("bare lines", format!("{:.3} M/s  (the calls: {ratio:.2} x)", lines / 1e6)));
        }
        if let (Some(copies), Some(ratio)) = (self.copy_bandwidth, self.copy_ratio) {
            rows.push(("bare copies", format!("{}  (the calls: {ratio:.2} x)", rate(copies))));
        }
        let title = format!(
            "echo of {} B on {}/{}, window {}, {} client(s), server in {}: {} calls",
            self.size, self.device, self.backend, self.window, self.clients, self.mode, self.calls
        );
        table(&title, &rows)
    }
}

impl LimitReport {
    /// Formats the table.
    pub fn table(&self) -> String {
        let [first, second] = self.cores;
        let p50 = format!("{} ns p50, {} ns p99", self.limit_ns, self.limit_p99_ns);
        let rows = [
            ("bounced line", p50),
            ("memcpy", rate(self.memcpy_bandwidth)),
            ("bare lines", format!("{:.3} M/s there and back", self.line_rate / 1e6)),
            ("bare copies", format!("{} there and back", rate(self.copy_bandwidth))),
        ];
        table(&format!("limit of cores {first} and {second}, buffers of {} B", self.size), &rows)
    }
}

fn table(title: &str, rows: &[(&str, String)]) -> String {
    let mut text = format!("{title}\n");
    for (name, value) in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {name:<14} {value}");
    }
    text
}

fn rate(bytes_per_second: f64) -> String {
    format!("{:.2} GB/s", bytes_per_second / 1e9)
}
