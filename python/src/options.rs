//! The keywords of every function of the package, made of one table.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An argument that may be left out.
pub(crate) type Given<'py> = Option<Bound<'py, PyAny>>;

/// From the table: [`Keywords`], and two macros that make functions whose keywords they are.
macro_rules! option_table {
    (every function $always:tt functions with dropout $dropout:tt) => {
        option_table! { @define $always $dropout ($) }
    };
    (@define { $($name:ident: $type:literal, $help:literal;)* } { $($late:ident: $late_type:literal, $late_help:literal;)* } ($d:tt)) => {
        /// The options of a call as Python objects. `None` is the default.
        #[derive(Default)]
        pub(crate) struct Keywords<'py> {
            $(#[doc = $help] pub(crate) $name: $crate::options::Given<'py>,)*
            $(#[doc = $late_help] pub(crate) $late: $crate::options::Given<'py>,)*
        }

        impl Keywords<'_> {
            pub(crate) fn is_default(&self) -> bool {
                $(self.$name.is_none())&&* $(&& self.$late.is_none())*
            }
        }

        /// `fn NAME(POSITIONAL; OWN KEYWORDS) => RUN` is a function of Python's with these arguments and all options. It calls
        /// `RUN(py, [positional], own.., keywords)`.
        macro_rules! function {
            ($d($d function:tt)+) => { $crate::options::function_with! { [$($late)*] [] $d($d function)+ } };
        }

        /// The same for a function without dropout.
        macro_rules! function_without_dropout {
            ($d($d function:tt)+) => { $crate::options::function_with! { [] [$($late)*] $d($d function)+ } };
        }

        /// The function, with those options of dropout that it has and those that it has not.
        macro_rules! function_with {
            (
                [$d($d late:ident)*] [$d($d absent:ident)*]
                $d(#[$d meta:meta])*
                fn $d function:ident($d($d before:ident),+ $d([$d optional:ident])?; $d($d own:ident: $d kind:ty = $d default:tt),*) => $d run:path
            ) => {
                $d(#[$d meta])*
                #[pyfunction]
                #[pyo3(signature = (
                    $d($d before,)+ $d($d optional = None,)? *, $d($d own = $d default,)* $($name = None,)* $d($d late = None,)* **unknown
                ))]
                #[allow(clippy::too_many_arguments, reason = "they are Python's keywords")]
                pub(crate) fn $d function<'py>(
                    py: Python<'py>,
                    $d($d before: &Bound<'py, PyAny>,)+
                    $d($d optional: Option<&Bound<'py, PyAny>>,)?
                    $d($d own: $d kind,)*
                    $($name: $crate::options::Given<'py>,)*
                    $d($d late: $crate::options::Given<'py>,)*
                    unknown: Option<&Bound<'py, ::pyo3::types::PyDict>>,
                ) -> PyResult<Bound<'py, PyAny>> {
                    let known = [$d(stringify!($d own),)* $(stringify!($name),)* $d(stringify!($d late),)*];
                    $crate::options::refuse_unknown(stringify!($d function), unknown, &known)?;
                    let keywords = $crate::options::Keywords { $($name,)* $d($d late,)* $d($d absent: None),* };
                    $d run(py, [$d($d before),+], $d($d optional,)? $d($d own,)* &keywords)
                }
            };
        }

        pub(crate) use function;
        pub(crate) use function_with;
        pub(crate) use function_without_dropout;
    };
}

/// Keywords of other libraries, and what they are here.
const ELSEWHERE: [(&str, &str); 13] = [
    ("attention_mask", "mask"),
    ("attn_bias", "bias"),
    ("attn_mask", "mask"),
    ("dropout", "dropout_p"),
    ("is_causal", "causal"),
    ("key_padding_mask", "mask=regard.Mask.key_padding(...)"),
    ("logits_soft_cap", "softcap"),
    ("need_weights", "return_weights"),
    ("output_attentions", "return_weights"),
    ("s_aux", "sink"),
    ("sliding_window", "window"),
    ("sm_scale", "scale"),
    ("softmax_scale", "scale"),
];

/// How many letters are to be changed, left out or put in.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let here = (before + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            before = std::mem::replace(&mut row[j + 1], here);
        }
    }
    row[b.len()]
}

/// An error for a keyword that the function does not have, with the one that is meant.
pub(crate) fn refuse_unknown(function: &str, unknown: Option<&Bound<'_, PyDict>>, known: &[&str]) -> PyResult<()> {
    let Some((name, _)) = unknown.and_then(|unknown| unknown.iter().next()) else { return Ok(()) };
    let name = name.to_string();
    let elsewhere = ELSEWHERE.iter().find(|(other, ours)| *other == name && known.contains(&ours.split('=').next().unwrap_or(ours)));
    let near = || known.iter().map(|known| (distance(&name, known), *known)).filter(|(distance, _)| *distance <= 2).min();
    let meant = elsewhere.map(|(_, ours)| *ours).or_else(|| near().map(|(_, known)| known));
    let text = format!("{function}() got an unexpected keyword argument '{name}'");
    Err(PyTypeError::new_err(match meant {
        Some(meant) => format!("{text}; did you mean {meant}?"),
        None => format!("{text}; it takes {}", known.join(", ")),
    }))
}

include!("table.rs");
