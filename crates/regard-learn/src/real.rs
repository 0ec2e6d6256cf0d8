//! The number types that one formula is evaluated in.
//!
//! `f64` is the oracle. `f32` is an honest evaluation, whose error says how much rounding an answer may have. [`Tracked`] carries beside
//! the value the value of the same formula with absolute values, so that a sum that cancels keeps a tolerance.

use std::ops::{Add, Div, Mul, Neg, Sub};

/// A real number: what the formulas of the exercises are made of.
pub trait Real: Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self> {
    /// The nearest number of this type.
    fn of(x: f64) -> Self;
    /// Its value.
    fn value(self) -> f64;
    /// The value with absolute values in place of all terms; the absolute value where that is not tracked.
    fn magnitude(self) -> f64 {
        self.value().abs()
    }
    /// e to this power.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Sine.
    fn sin(self) -> Self;
    /// Cosine.
    fn cos(self) -> Self;
    /// This number to a power.
    fn powf(self, power: Self) -> Self;
    /// Absolute value.
    fn abs(self) -> Self {
        if self.value() < 0.0 { -self } else { self }
    }
    /// The larger one; NaN when either is NaN.
    fn max(self, other: Self) -> Self {
        let (a, b) = (self.value(), other.value());
        if a.is_nan() || b.is_nan() {
            Self::of(f64::NAN)
        } else if b > a {
            other
        } else {
            self
        }
    }
}

macro_rules! plain {
    ($t:ty) => {
        impl Real for $t {
            fn of(x: f64) -> Self {
                x as $t
            }
            fn value(self) -> f64 {
                f64::from(self)
            }
            fn exp(self) -> Self {
                <$t>::exp(self)
            }
            fn ln(self) -> Self {
                <$t>::ln(self)
            }
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
            fn sin(self) -> Self {
                <$t>::sin(self)
            }
            fn cos(self) -> Self {
                <$t>::cos(self)
            }
            fn powf(self, power: Self) -> Self {
                <$t>::powf(self, power)
            }
        }
    };
}
plain!(f32);
plain!(f64);

/// A value, and the value of the same formula with absolute values.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    value: f64,
    magnitude: f64,
}

impl Tracked {
    fn positive(value: f64) -> Self {
        Self { value, magnitude: value.abs() }
    }
}

impl Add for Tracked {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { value: self.value + other.value, magnitude: self.magnitude + other.magnitude }
    }
}

impl Sub for Tracked {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self { value: self.value - other.value, magnitude: self.magnitude + other.magnitude }
    }
}

impl Mul for Tracked {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        Self { value: self.value * other.value, magnitude: self.magnitude * other.magnitude }
    }
}

impl Div for Tracked {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        Self { value: self.value / other.value, magnitude: self.magnitude / other.value.abs() }
    }
}

impl Neg for Tracked {
    type Output = Self;
    fn neg(self) -> Self {
        Self { value: -self.value, ..self }
    }
}

impl Real for Tracked {
    fn of(x: f64) -> Self {
        Self::positive(x)
    }
    fn value(self) -> f64 {
        self.value
    }
    fn magnitude(self) -> f64 {
        self.magnitude
    }
    fn exp(self) -> Self {
        Self::positive(self.value.exp())
    }
    fn ln(self) -> Self {
        Self::positive(self.value.ln())
    }
    fn sqrt(self) -> Self {
        Self { value: self.value.sqrt(), magnitude: self.magnitude.sqrt() }
    }
    fn sin(self) -> Self {
        Self { value: self.value.sin(), magnitude: 1.0 }
    }
    fn cos(self) -> Self {
        Self { value: self.value.cos(), magnitude: 1.0 }
    }
    fn powf(self, power: Self) -> Self {
        Self::positive(self.value.powf(power.value))
    }
}

#[cfg(test)]
mod tests {
    use super::{Real, Tracked};

    #[test]
    fn what_cancels_keeps_its_magnitude() {
        let x = Tracked::of(3.0) * Tracked::of(2.0) - Tracked::of(6.0);
        assert_eq!((x.value(), x.magnitude()), (0.0, 12.0));
        assert_eq!((x.exp().value(), x.exp().magnitude()), (1.0, 1.0));
    }

    #[test]
    fn the_maximum_with_nan_is_nan() {
        assert!(Real::max(1.0f64, f64::NAN).is_nan() && Real::max(f32::NAN, 1.0).is_nan());
    }
}
