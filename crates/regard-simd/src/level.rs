//! SIMD level selection: the best level of the CPU, or the one in the environment.

use std::sync::OnceLock;

/// A level of SIMD instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// Plain Rust, whatever the compiler makes of it for the target's baseline.
    Portable,
    /// NEON of 64-bit ARM, 128 bits.
    Neon,
    /// AVX2 with FMA and F16C, 256 bits.
    Avx2,
    /// AVX-512 F, 512 bits.
    Avx512,
    /// AVX-512 with AVX512_BF16: where elements are bf16, products of two inputs are made in pairs, with bits of their own. For other
    /// elements it is [`Level::Avx512`].
    Avx512Bf16,
    /// [`Level::Avx512Bf16`] with AMX, on Linux: where elements are bf16, all products are made of tiles, with bits of their own.
    /// For other elements it is [`Level::Avx512`].
    Amx,
}

/// The requested level does not exist, or this CPU does not have it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("SIMD level not available: {asked}; this CPU has {available}")]
pub struct MissingLevel {
    /// The requested level.
    pub asked: String,
    /// The levels there are.
    pub available: String,
}

impl Level {
    /// All levels, lowest first.
    pub const ALL: [Self; 6] = [Self::Portable, Self::Neon, Self::Avx2, Self::Avx512, Self::Avx512Bf16, Self::Amx];

    /// The name as it is written in `REGARD_SIMD`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512bf16",
            Self::Amx => "amx",
        }
    }

    /// Whether this CPU can run it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => crate::aarch64::neon::F32::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => crate::x86::avx2::F32::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => crate::x86::avx512::F32::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => crate::x86::avx512::Bf16::detect().is_some(),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::Amx => crate::x86::amx::Amx::detect().is_some(),
            // Levels of other architectures.
            _ => false,
        }
    }

    /// The levels of this CPU, lowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|l| l.is_available())
    }

    /// The default level: the value of `REGARD_SIMD`, else the best of this CPU.
    ///
    /// # Errors
    /// [`MissingLevel`] when `REGARD_SIMD` names a level that is not available.
    pub fn preferred() -> Result<Self, MissingLevel> {
        static PREFERRED: OnceLock<Result<Level, MissingLevel>> = OnceLock::new();
        PREFERRED
            .get_or_init(|| match std::env::var("REGARD_SIMD") {
                Ok(name) if !name.is_empty() => Self::parse(&name)?.checked(),
                _ => Ok(Self::available().last().unwrap_or(Self::Portable)),
            })
            .clone()
    }

    /// [`Level::preferred`], for functions that have no error to return.
    ///
    /// # Panics
    /// When `REGARD_SIMD` names a level that is not available.
    pub fn preferred_or_panic() -> Self {
        Self::preferred().unwrap_or_else(|missing| panic!("{missing}: change REGARD_SIMD"))
    }

    /// The level of that name.
    ///
    /// # Errors
    /// [`MissingLevel`] when there is none.
    pub fn parse(name: &str) -> Result<Self, MissingLevel> {
        Self::ALL.into_iter().find(|l| l.name() == name).ok_or_else(|| Self::missing(name))
    }

    /// Itself, if this CPU has it.
    ///
    /// # Errors
    /// [`MissingLevel`] when it has not.
    pub fn checked(self) -> Result<Self, MissingLevel> {
        if self.is_available() { Ok(self) } else { Err(Self::missing(self.name())) }
    }

    fn missing(asked: &str) -> MissingLevel {
        let available: Vec<_> = Self::available().map(Self::name).collect();
        MissingLevel { asked: asked.to_owned(), available: available.join(", ") }
    }
}
