//! Masks of edits: words, and `~and~`, `~or~`, `~not~` between them, the last binding strongest.

use regard::Mask;
use std::fmt;

/// A mask that can be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MaskExpr {
    /// No key after the query.
    Causal,
    /// Everything.
    Full,
    /// No key before the query.
    Reverse,
    /// Keys before and after the query.
    Window(usize, usize),
    /// The number of first keys.
    First(usize),
    /// Both.
    And(Box<MaskExpr>, Box<MaskExpr>),
    /// Either.
    Or(Box<MaskExpr>, Box<MaskExpr>),
    /// The others.
    Not(Box<MaskExpr>),
}

impl MaskExpr {
    /// Read one.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split('~').filter(|word| !word.is_empty()).collect();
        let mut rest = words.as_slice();
        let mask = Self::either(&mut rest, 0)?;
        match rest.first() {
            None => Ok(mask),
            Some(word) => Err(format!("after a mask there is {word:?}; ~and~ or ~or~ joins two")),
        }
    }

    fn either(words: &mut &[&str], depth: usize) -> Result<Self, String> {
        let mut mask = Self::both(words, depth)?;
        while words.first() == Some(&"or") {
            *words = &words[1..];
            mask = Self::Or(Box::new(mask), Box::new(Self::both(words, depth)?));
        }
        Ok(mask)
    }

    fn both(words: &mut &[&str], depth: usize) -> Result<Self, String> {
        let mut mask = Self::one(words, depth)?;
        while words.first() == Some(&"and") {
            *words = &words[1..];
            mask = Self::And(Box::new(mask), Box::new(Self::one(words, depth)?));
        }
        Ok(mask)
    }

    fn one(words: &mut &[&str], depth: usize) -> Result<Self, String> {
        let Some((&word, rest)) = words.split_first() else { return Err("a mask is missing".to_owned()) };
        *words = rest;
        let count = |text: &str| text.parse::<usize>().map_err(|_| format!("{text:?} is no number of keys"));
        match word {
            "not" if depth >= 64 => Err("there are too many ~not~".to_owned()),
            "not" => Ok(Self::Not(Box::new(Self::one(words, depth + 1)?))),
            "causal" => Ok(Self::Causal),
            "full" => Ok(Self::Full),
            "reverse" => Ok(Self::Reverse),
            _ => match (word.strip_prefix("window:"), word.strip_prefix("first:")) {
                (Some(sides), _) => {
                    let (left, right) = sides.split_once(',').ok_or_else(|| format!("{word:?} needs two numbers, as in window:15,0"))?;
                    Ok(Self::Window(count(left)?, count(right)?))
                }
                (_, Some(keys)) => Ok(Self::First(count(keys)?)),
                _ => Err(format!("{word:?} is no mask: causal, full, reverse, window:15,0 and first:4 are, joined by ~and~, ~or~, ~not~")),
            },
        }
    }

    /// As the library has it.
    pub fn mask(&self) -> Mask<'static> {
        match self {
            Self::Causal => Mask::causal(),
            Self::Full => Mask::everything(),
            Self::Reverse => Mask::reverse(),
            Self::Window(left, right) => Mask::window(Some(*left), Some(*right)),
            Self::First(keys) => Mask::first_keys(*keys),
            Self::And(a, b) => a.mask() & b.mask(),
            Self::Or(a, b) => a.mask() | b.mask(),
            Self::Not(a) => !a.mask(),
        }
    }

    /// In words.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Causal => "no key after the query".to_owned(),
            Self::Full => "every key".to_owned(),
            Self::Reverse => "no key before the query".to_owned(),
            Self::Window(left, right) => format!("up to {left} keys before and {right} after the query"),
            Self::First(keys) => format!("the first {keys} keys"),
            Self::And(a, b) => format!("({} and {})", a.words(), b.words()),
            Self::Or(a, b) => format!("({} or {})", a.words(), b.words()),
            Self::Not(a) => format!("not ({})", a.words()),
        }
    }

    /// How strongly it holds together.
    fn strength(&self) -> u8 {
        match self {
            Self::Or(..) => 0,
            Self::And(..) => 1,
            _ => 2,
        }
    }
}

impl fmt::Display for MaskExpr {
    /// There are no brackets in the grammar, and none are ever needed: `or` of `and`s is all that can be written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Causal => write!(f, "causal"),
            Self::Full => write!(f, "full"),
            Self::Reverse => write!(f, "reverse"),
            Self::Window(left, right) => write!(f, "window:{left},{right}"),
            Self::First(keys) => write!(f, "first:{keys}"),
            Self::And(a, b) => {
                debug_assert!(a.strength() >= 1 && b.strength() >= 1, "read from a string");
                write!(f, "{a}~and~{b}")
            }
            Self::Or(a, b) => write!(f, "{a}~or~{b}"),
            Self::Not(a) => write!(f, "~not~{a}"),
        }
    }
}
