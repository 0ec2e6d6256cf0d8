//! Colour maps for values, and the steps that a heat map's picture is quantised to.

use colorous::{CIVIDIS, Gradient, MAGMA, PURPLE_ORANGE, VIRIDIS};

/// From a share between 0 and 1 to a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ColourMap {
    /// Dark violet to yellow; even steps, safe for colour-blind readers and in grey print.
    #[default]
    Viridis,
    /// Blue to yellow, the same to readers with and without red-green blindness.
    Cividis,
    /// Black to pale yellow.
    Magma,
    /// Orange through white to purple: for values with a middle, such as correlations. Give symmetric limits.
    PurpleOrange,
}

/// Colours in a quantised picture.
pub(crate) const STEPS: usize = 254;

impl ColourMap {
    fn gradient(self) -> Gradient {
        match self {
            Self::Viridis => VIRIDIS,
            Self::Cividis => CIVIDIS,
            Self::Magma => MAGMA,
            Self::PurpleOrange => PURPLE_ORANGE,
        }
    }

    /// The colour of a share; values outside 0..1 take the nearest end.
    pub fn colour(self, share: f64) -> [u8; 3] {
        let c = self.gradient().eval_continuous(share.clamp(0.0, 1.0));
        [c.r, c.g, c.b]
    }

    /// The colours of all steps, six hexadecimal digits each.
    pub(crate) fn palette_hex(self) -> String {
        (0..STEPS as u8).map(|s| hex(self.step_colour(s))[1..].to_owned()).collect()
    }

    /// The step of a share.
    pub(crate) fn step(share: f64) -> u8 {
        (share.clamp(0.0, 1.0) * (STEPS - 1) as f64).round() as u8
    }

    /// The colour of a step: what a cell of that value is painted with, drawn or as a picture.
    pub(crate) fn step_colour(self, step: u8) -> [u8; 3] {
        self.colour(f64::from(step) / (STEPS - 1) as f64)
    }
}

pub(crate) fn hex([r, g, b]: [u8; 3]) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// Is dark text readable on this colour (rather than light)?
pub(crate) fn takes_dark_text(rgb: [u8; 3]) -> bool {
    let [r, g, b] = rgb.map(|c| {
        let c = f64::from(c) / 255.0;
        if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
    });
    0.2126 * r + 0.7152 * g + 0.0722 * b > 0.19
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_maps_only_grow_lighter() {
        for map in [ColourMap::Viridis, ColourMap::Cividis, ColourMap::Magma] {
            let light = |s: u8| {
                let [r, g, b] = map.step_colour(s).map(f64::from);
                0.2126 * r + 0.7152 * g + 0.0722 * b
            };
            for s in 0..STEPS as u8 - 8 {
                assert!(light(s + 8) > light(s), "{map:?} at {s}");
            }
        }
    }

    #[test]
    fn viridis_has_its_known_ends() {
        assert_eq!(ColourMap::Viridis.colour(0.0), [0x44, 0x01, 0x54]);
        assert_eq!(ColourMap::Viridis.colour(1.0), [0xfd, 0xe7, 0x25]);
        assert!(!takes_dark_text(ColourMap::Viridis.colour(0.0)) && takes_dark_text(ColourMap::Viridis.colour(1.0)));
    }
}
