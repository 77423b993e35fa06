//! The report as text.

use std::io::{self, Write};

use super::Report;
use super::device::{CapabilitySummary, Device, Gid, Port};
use super::layout;
use super::system::System;

/// Writes the report.
pub(super) fn write(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let rdma = if report.ibverbs { "with" } else { "without" };
    writeln!(out, "farcall {}, built {rdma} RDMA devices", report.version)?;
    for device in &report.devices {
        write_device(out, device)?;
    }
    writeln!(out, "\nno device: TCP")?;
    row(out, "address", "tcp://HOST:PORT")?;
    for backend in &report.without_device {
        row(out, &format!("backend {}", backend.name), "runs")?;
    }
    write_system(out, &report.system)?;
    layout::write(out, &report.layout)?;
    if !report.hints.is_empty() {
        writeln!(out, "\nhints")?;
    }
    report.hints.iter().try_for_each(|hint| writeln!(out, "  - {hint}"))
}

fn row(out: &mut impl Write, name: &str, value: impl std::fmt::Display) -> io::Result<()> {
    writeln!(out, "  {name:<18} {value}")
}

fn write_device(out: &mut impl Write, device: &Device) -> io::Result<()> {
    let Device { name, description, .. } = device;
    match description.as_str() {
        "" => writeln!(out, "\n{name}")?,
        description => writeln!(out, "\n{name}: {description}")?,
    }
    if let Some(problem) = &device.problem {
        row(out, "cannot be opened", problem)?;
    }
    for port in &device.ports {
        write_port(out, port)?;
    }
    if let Some(can) = &device.can {
        let address = match name.starts_with("shm") {
            true => "shm://NAME".to_owned(),
            false => format!("rdma://HOST:PORT?device={name}"),
        };
        row(out, "address", address)?;
        write_abilities(out, can)?;
    }
    for backend in &device.backends {
        let verdict = match &backend.why_not {
            None => "runs".to_owned(),
            Some(why) => format!("does not run: {why}"),
        };
        row(out, &format!("backend {}", backend.name), verdict)?;
    }
    Ok(())
}

fn write_port(out: &mut impl Write, port: &Port) -> io::Result<()> {
    let Port { number, state, link, mtu, .. } = port;
    let netdev = port.netdev.as_ref().map_or(String::new(), |netdev| format!(" on {netdev}"));
    row(out, &format!("port {number}"), format!("{state}, {link}{netdev}, MTU {mtu} B"))?;
    for Gid { index, address, ty, usual } in &port.gids {
        let usual = if *usual { ", used unless gid_index says otherwise" } else { "" };
        row(out, &format!("  GID index {index}"), format!("{address} ({ty}){usual}"))?;
    }
    if port.gids.is_empty() {
        row(out, "  GIDs", "none")?;
    }
    Ok(())
}

fn write_abilities(out: &mut impl Write, can: &CapabilitySummary) -> io::Result<()> {
    for (name, operations) in [("RC", &can.rc), ("UC", &can.uc), ("UD", &can.ud)] {
        if !operations.is_empty() {
            row(out, name, operations.join(", "))?;
        }
    }
    let (inline, message) = (bytes(can.max_inline as u64), bytes(can.max_message));
    row(
        out,
        "messages",
        format!("inline to {inline}, RC and UC to {message}, UD to {}", bytes(can.mtu as u64)),
    )?;
    row(
        out,
        "queues",
        format!(
            "{} sends, {} receives, {} READs and atomics of a queue pair; {} completions",
            can.max_send_wr, can.max_recv_wr, can.max_rd_atomic, can.max_cqe
        ),
    )?;
    let mut more = vec![format!("up to {} scatter-gather elements", can.max_sge)];
    for (has, what) in [
        (can.srq, "shared receive queues"),
        (can.wait, "completion channels"),
        (can.persistent_memory, "persistent memory"),
        (can.flush, "flush to persistence"),
        (can.dynamic_connections, "dynamic connections"),
    ] {
        more.push(if has { what.to_owned() } else { format!("no {what}") });
    }
    if can.completion_payload > 0 {
        more.push(format!("completions that carry {} bytes", can.completion_payload));
    }
    row(out, "also", more.join(", "))?;
    let order = if can.writes_in_order { "from left to right" } else { "in any order" };
    let visible = if can.completion_means_visible { "visible" } else { "delivered" };
    row(out, "WRITEs", format!("land {order}; a completion means {visible} at the peer"))
}

fn write_system(out: &mut impl Write, system: &System) -> io::Result<()> {
    writeln!(out, "\nthis process")?;
    let locked = |limit: Option<u64>| limit.map_or("no limit".to_owned(), bytes);
    let files = |limit: Option<u64>| limit.map_or("no limit".to_owned(), |n| n.to_string());
    let (now, most) = (locked(system.memlock), locked(system.memlock_hard));
    row(out, "locked memory", format!("{now} (at most {most})"))?;
    let (now, most) = (files(system.open_files), files(system.open_files_hard));
    row(out, "open files", format!("{now} (at most {most})"))?;
    row(out, "cores", system.cores)?;
    for size in &system.huge_pages {
        let (free, reserved) = (size.free, size.reserved);
        let size = bytes(size.kib << 10);
        row(out, "huge pages", format!("{free} of {reserved} free, of {size} each"))?;
    }
    if let Some(policy) = &system.transparent_huge_pages {
        row(out, "transparent ones", policy)?;
    }
    let devices = match system.kernel_devices.as_slice() {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    row(out, "kernel's RDMA", devices)
}

/// Bytes, in the largest unit that gives a whole number.
fn bytes(count: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if count >= 1 << shift && count.is_multiple_of(1 << shift) {
            return format!("{} {unit}", count >> shift);
        }
    }
    format!("{count} B")
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_are_printed_without_rounding() {
        for (count, text) in
            [(0, "0 B"), (256, "256 B"), (4096, "4 KiB"), (2 << 30, "2 GiB"), (4200, "4200 B")]
        {
            assert_eq!(bytes(count), text);
        }
    }
}
