//! How much memory this process has used at most.

/// Peak resident bytes. `VmHWM` and not `getrusage`, whose figure a program inherits from the one that started it.
#[cfg(target_os = "linux")]
pub fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
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

/// Memory that the prefix cache gets when nobody says how much: a quarter of what is free now, at most 8 GiB, and 2 GiB
/// where the system does not tell. Weights that are mapped count as free, because the system can drop them.
pub fn default_cache_bytes() -> u64 {
    available_bytes().map_or(2 << 30, |free| (free / 4).min(8 << 30))
}

/// What the system could give to programs without swapping.
fn available_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
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
