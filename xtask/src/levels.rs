//! The SIMD levels of the library, and which of them this CPU has.

/// The environment variable that forces one level.
pub(crate) const FORCE: &str = "REGARD_SIMD";

/// The levels of this architecture, from the plainest to the widest.
#[cfg(not(target_arch = "aarch64"))]
pub(crate) const ALL: [&str; 5] = ["portable", "avx2", "avx512", "avx512bf16", "amx"];
/// The levels of this architecture, from the plainest to the widest.
#[cfg(target_arch = "aarch64")]
pub(crate) const ALL: [&str; 2] = ["portable", "neon"];

/// What this CPU lacks for the level, or `None` when the level can run.
pub(crate) fn lacks(level: &str) -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let avx512 = avx2 && is_x86_feature_detected!("avx512f");
        let avx512bf16 = avx512 && is_x86_feature_detected!("avx512bf16");
        // The kernel's word counts as well: it saves the tile registers, or does not name them.
        let amx = || {
            let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            ["amx_tile", "amx_bf16", "avx512_bf16"].iter().all(|flag| flags.split_whitespace().any(|word| word == *flag))
        };
        match level {
            "avx2" if !avx2 => Some("this CPU lacks AVX2, FMA or F16C"),
            "avx512" if !avx512 => Some("this CPU lacks AVX-512"),
            "avx512bf16" if !avx512bf16 => Some("this CPU lacks AVX512_BF16"),
            "amx" if !amx() => Some("this CPU lacks AMX, or the kernel does not offer it"),
            _ => None,
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        (level != "portable" && level != "neon").then_some("this is not an x86-64 CPU")
    }
}

/// The levels that can run here.
pub(crate) fn available() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().filter(|level| lacks(level).is_none())
}
