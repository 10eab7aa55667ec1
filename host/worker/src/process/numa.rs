//! Memory of machines with several NUMA nodes. Every thread reads all of a model's weights and caches: their pages lie on
//! the nodes in turn. Otherwise they would lie where they were read from disk first, and all threads would share that node's
//! memory bandwidth.

#[cfg(any(target_os = "linux", test))]
use std::ops::RangeInclusive;

/// Where a worker's memory comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The system has one node, or a process may use one only.
    OneNode,
    /// From these nodes in turn.
    Interleaved(Vec<u32>),
    /// Somebody has chosen, for instance by `numactl`.
    Chosen,
    /// The system does not let a process choose; why not.
    Refused(String),
}

/// Finds where the memory of a worker is to come from, if it starts as this process has.
pub fn placement() -> Placement {
    system::placement()
}

/// Places the memory of this thread accordingly, and of threads that it starts from now on.
pub fn place_memory() -> Placement {
    match placement() {
        Placement::Interleaved(nodes) => match system::interleave(&nodes) {
            Ok(()) => Placement::Interleaved(nodes),
            Err(error) => Placement::Refused(error.to_string()),
        },
        other => other,
    }
}

#[cfg(target_os = "linux")]
mod system {
    use super::{Placement, usable};
    use std::{fs, io};

    /// As many as the kernel's largest configuration has.
    const NODES_MAX: usize = 1024;
    const BITS: usize = libc::c_ulong::BITS as usize;
    type Mask = [libc::c_ulong; NODES_MAX / BITS];

    pub(super) fn placement() -> Placement {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let nodes =
            usable(&status, |node| fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist")).ok());
        if nodes.len() < 2 {
            return Placement::OneNode;
        }
        match policy() {
            Ok(libc::MPOL_DEFAULT) => Placement::Interleaved(nodes),
            Ok(_) => Placement::Chosen,
            Err(error) => Placement::Refused(error.to_string()),
        }
    }

    /// The policy of this thread.
    pub(super) fn policy() -> io::Result<libc::c_int> {
        let (mut mode, nothing, zero): (_, *mut libc::c_ulong, libc::c_ulong) = (0, std::ptr::null_mut(), 0);
        // SAFETY: the kernel writes one `int` and, as it is given no mask and no address, nothing else.
        let result = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, nothing, zero, nothing, zero) };
        if result == 0 { Ok(mode) } else { Err(io::Error::last_os_error()) }
    }

    pub(super) fn interleave(nodes: &[u32]) -> io::Result<()> {
        let mut mask: Mask = [0; NODES_MAX / BITS];
        for node in nodes.iter().map(|node| *node as usize).filter(|node| *node < NODES_MAX) {
            mask[node / BITS] |= 1 << (node % BITS);
        }
        // The kernel reads one bit fewer than it is told.
        let bits = NODES_MAX + 1;
        // SAFETY: the kernel reads the mask, which has as many bits as it reads.
        let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_INTERLEAVE, mask.as_ptr(), bits) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::Placement;
    use std::io;

    pub(super) fn placement() -> Placement {
        Placement::OneNode
    }

    pub(super) fn interleave(_nodes: &[u32]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The nodes whose memory a process with this `/proc/self/status` may use and on whose processors it may run.
#[cfg(any(target_os = "linux", test))]
fn usable(status: &str, cpus_of: impl Fn(u32) -> Option<String>) -> Vec<u32> {
    let list = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(ranges).unwrap_or_default();
    let cpus = list("Cpus_allowed_list:");
    let is_shared =
        |node: &RangeInclusive<u32>| cpus.iter().any(|own| own.start() <= node.end() && node.start() <= own.end());
    let has_cpus = |node: &u32| cpus_of(*node).is_some_and(|list| ranges(&list).iter().any(is_shared));
    list("Mems_allowed_list:").into_iter().flatten().filter(has_cpus).collect()
}

/// The numbers of a list such as `0-3,8`. What is not one counts for nothing.
#[cfg(any(target_os = "linux", test))]
fn ranges(list: &str) -> Vec<RangeInclusive<u32>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(cpus: &str, memory: &str) -> String {
        format!("Name:\tpensieve\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{memory}\n")
    }

    #[test]
    fn nodes_count_if_both_their_memory_and_their_processors_may_be_used() {
        // Node 2 has memory alone.
        let cpus = |node: u32| ["0-15,32-47\n", "16-31,48-63\n", "\n"].get(node as usize).map(ToString::to_string);
        assert_eq!(usable(&status("0-63", "0-2"), cpus), [0, 1]);
        assert_eq!(usable(&status("16-31", "0-2"), cpus), [1]);
        assert_eq!(usable(&status("3,47-48", "0-1"), cpus), [0, 1]);
        assert_eq!(usable(&status("0-63", "1"), cpus), [1]);
        assert_eq!(usable(&status("0-63", "0-7"), cpus), [0, 1]);
        assert!(usable("", cpus).is_empty());
        assert!(usable(&status("none", "0-1"), cpus).is_empty());
    }

    /// In a thread of its own, as the policy is a thread's.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_kernel_takes_the_policy() {
        std::thread::spawn(|| {
            // Containers often refuse both calls, and somebody may have started the tests with another policy.
            let policy = system::policy().map_err(|error| error.to_string());
            if policy != Ok(libc::MPOL_DEFAULT) {
                return println!("skipped: the policy is {policy:?}");
            }
            system::interleave(&[0]).unwrap();
            assert_eq!(system::policy().unwrap(), libc::MPOL_INTERLEAVE);
            assert!(std::thread::spawn(|| system::policy().unwrap() == libc::MPOL_INTERLEAVE).join().unwrap());
            // There is no such node.
            assert!(system::interleave(&[1000]).is_err());
        })
        .join()
        .unwrap();
    }
}
