//! The memory that a model may take of a Mac, whose GPU and programs share it, and the size of its GPU.

/// Figures of the system, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    /// `recommendedMaxWorkingSetSize`, about three quarters of the memory.
    pub(super) recommended: u64,
    /// `iogpu.wired_limit_mb`; 0 if the user has not set it.
    pub(super) wired_limit_mb: u64,
    /// This process's own buffers.
    pub(super) allocated: u64,
    pub(super) memory: u64,
    /// `kern.memorystatus_level`, the share of the memory that is neither wired nor compressed.
    pub(super) available_percent: Option<u64>,
}

impl Figures {
    /// Memory for a model: the GPU's limit and what other programs leave both bound it.
    pub(super) fn free(&self) -> u64 {
        let limit = match self.wired_limit_mb {
            0 => self.recommended,
            megabytes => megabytes.saturating_mul(1 << 20),
        };
        let available = self.available_percent.map_or(u64::MAX, |percent| self.memory / 100 * percent.min(100));
        limit.saturating_sub(self.allocated).min(available)
    }
}

/// Why our kernels do not run on a GPU; `is_apple7` is that of the M1 and later ones. Older GPUs and those of virtual machines lack
/// SIMD-group reductions, and return zeros for them.
pub(super) fn refusal(is_apple7: bool) -> Option<&'static str> {
    (!is_apple7).then_some("our kernels need SIMD-group operations, which GPUs before the M1's and virtual ones lack")
}

/// Cores of a GPU, by the last letter of its architecture's name (`applegpu_g13s`), as Metal does not say how many there are: the
/// fewest of the kind but for base chips, which share their letter with the Pro.
pub(super) fn cores_of(architecture: &str) -> usize {
    match architecture.chars().next_back() {
        Some('p') => 5,
        Some('s') => 24,
        Some('d') => 48,
        _ => CORES,
    }
}

/// Cores of an M1 Pro's smaller GPU.
pub(super) const CORES: usize = 14;

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn free_memory_is_what_the_gpu_may_take_and_others_leave() {
        let idle = Figures {
            recommended: 11 * GIB,
            wired_limit_mb: 0,
            allocated: 0,
            memory: 16 * GIB,
            available_percent: Some(80),
        };
        assert_eq!(idle.free(), 11 * GIB);
        assert_eq!(Figures { allocated: 4 * GIB, ..idle }.free(), 7 * GIB);
        assert_eq!(Figures { wired_limit_mb: 12 << 10, ..idle }.free(), 12 * GIB);
        assert_eq!(Figures { available_percent: Some(25), ..idle }.free() / GIB, 3);
        assert_eq!(Figures { available_percent: None, allocated: 12 * GIB, ..idle }.free(), 0);
    }

    #[test]
    fn a_virtual_machine_s_gpu_is_left_to_the_formulas() {
        assert_eq!(refusal(true), None);
        assert!(refusal(false).is_some_and(|why| why.contains("virtual")));
    }

    #[test]
    fn an_architecture_s_last_letter_tells_the_size_of_its_gpu() {
        let cores = ["applegpu_g14p", "applegpu_g13g", "applegpu_g13s", "applegpu_g14d", "", "other"].map(cores_of);
        assert_eq!(cores, [5, 14, 24, 48, 14, 14]);
    }
}
