//! The keywords of every function of the package, made of one table.

use pyo3::prelude::*;

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
                    $d($d before,)+ $d($d optional = None,)? *, $d($d own = $d default,)* $($name = None,)* $d($d late = None),*
                ))]
                #[allow(clippy::too_many_arguments, reason = "they are Python's keywords")]
                pub(crate) fn $d function<'py>(
                    py: Python<'py>,
                    $d($d before: &Bound<'py, PyAny>,)+
                    $d($d optional: Option<&Bound<'py, PyAny>>,)?
                    $d($d own: $d kind,)*
                    $($name: $crate::options::Given<'py>,)*
                    $d($d late: $crate::options::Given<'py>,)*
                ) -> PyResult<Bound<'py, PyAny>> {
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

include!("table.rs");
