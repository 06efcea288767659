//! How much memory this process has used at most.

/// Peak resident bytes. `VmHWM` and not `getrusage`, whose figure a program inherits from the one that started it.
#[cfg(target_os = "linux")]
pub fn peak_bytes() -> Option<u64> {
    field("/proc/self/status", "VmHWM:")
}

/// Later peaks are those after this moment, where the system can do that.
#[cfg(target_os = "linux")]
pub fn forget_peak() {
    // proc_pid_clear_refs(5): 5 resets the peak. Where it is refused, the peak is what it was.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Not possible here.
#[cfg(not(target_os = "linux"))]
pub fn forget_peak() {}

/// Peak resident bytes.
#[cfg(all(unix, not(target_os = "linux")))]
pub fn peak_bytes() -> Option<u64> {
    use nix::sys::resource::{UsageWho, getrusage};
    let unit = if cfg!(target_vendor = "apple") { 1 } else { 1024 };
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    u64::try_from(usage.max_rss()).ok().map(|n| n * unit)
}

/// Not known here.
#[cfg(not(unix))]
pub fn peak_bytes() -> Option<u64> {
    None
}

/// Bytes that this process holds now, mapped files included. 0 where the system does not tell.
pub fn resident_bytes() -> u64 {
    field("/proc/self/status", "VmRSS:").unwrap_or(0)
}

/// What the system could give to programs without swapping, and the control group of this process allows. Mapped files count
/// as free, because the system can drop them.
#[cfg(not(target_os = "macos"))]
pub fn available_bytes() -> Option<u64> {
    let group = || {
        let read = |name| std::fs::read_to_string(format!("/sys/fs/cgroup/memory.{name}")).ok();
        let number = |name| read(name)?.trim().parse::<u64>().ok();
        Some(number("max")?.saturating_sub(number("current")?))
    };
    let free = field("/proc/meminfo", "MemAvailable:")?;
    Some(group().map_or(free, |left: u64| left.min(free)))
}

/// All memory of this Mac: what it can free is known only when it is needed.
#[cfg(target_os = "macos")]
pub fn available_bytes() -> Option<u64> {
    ram()
}

/// All memory of this machine, where the GPU gets a part of it.
pub fn ram() -> Option<u64> {
    #[cfg(target_os = "macos")]
    return Some(lily_gpu::device::metal::physical_memory());
    #[cfg(not(target_os = "macos"))]
    None
}

/// A line `name 123 kB` of a file of the system.
fn field(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_touched_buffer_shows_up() {
        let touched = vec![1_u8; 64 << 20];
        assert!(touched.iter().map(|&b| u64::from(b)).sum::<u64>() == 64 << 20);
        assert!(peak_bytes().unwrap() >= 64 << 20);
    }
}
