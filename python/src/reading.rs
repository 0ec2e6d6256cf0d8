//! What is run and read: texts and ids, sound, images.

use crate::model::refused;
use crate::parse::Listed;
use ndarray::{Array2, Array3};
use numpy::{PyReadonlyArray2, PyReadonlyArray3};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use regard_model::front::image::Image;
use regard_model::front::sound::Sound;
use regard_model::{Edits, Input, Model, Run, Sources};
use std::path::PathBuf;

/// Tokens as Python has them: a text, or anything with integers in it.
pub(crate) enum Given {
    Text(String),
    Ids(Vec<u32>),
}

impl Given {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Self::Text(text.to_str()?.to_owned()));
        }
        // Arrays and tensors of other packages know their numbers as lists.
        let list = if object.hasattr("tolist")? { object.call_method0("tolist")? } else { object.clone() };
        let wrong = || PyTypeError::new_err(format!("a text or a list of token ids is needed, not {}", object.get_type()));
        let numbers: Vec<i64> = match list.extract::<Listed<i64>>() {
            Ok(Listed(numbers)) => numbers,
            Err(error) if error.is_instance_of::<PyValueError>(object.py()) => return Err(error),
            Err(_) => match list.extract::<Listed<Listed<i64>>>() {
                Ok(Listed(rows)) if rows.len() == 1 => rows.into_iter().next().map_or_else(Vec::new, |row| row.0),
                Ok(Listed(rows)) => return Err(PyValueError::new_err(format!("one text at a time, not {}", rows.len()))),
                Err(_) => return Err(wrong()),
            },
        };
        let id = |&id: &i64| u32::try_from(id).map_err(|_| PyValueError::new_err(format!("{id} is no token")));
        numbers.iter().map(id).collect::<PyResult<_>>().map(Self::Ids)
    }

    pub(crate) fn ids(&self, model: &regard_model::Model) -> PyResult<Vec<u32>> {
        let input = match self {
            Self::Text(text) => Input::Text(text),
            Self::Ids(ids) => Input::Ids(ids),
        };
        model.ids(input).map_err(refused)
    }
}

/// What a model reads with `read`.
pub(crate) enum Source {
    Ids(Vec<u32>),
    Sound(Sound),
    Image(Image),
    Features(Array2<f32>),
    Pixels(Array3<f32>),
}

impl Source {
    /// The one of these that was given.
    pub(crate) fn new(
        ids: Option<Vec<u32>>,
        audio: Option<PathBuf>,
        image: Option<PathBuf>,
        features: Option<PyReadonlyArray2<'_, f32>>,
        pixels: Option<PyReadonlyArray3<'_, f32>>,
    ) -> PyResult<Self> {
        match (ids, audio, image, features, pixels) {
            (Some(ids), None, None, None, None) => Ok(Self::Ids(ids)),
            (None, Some(path), None, None, None) => Ok(Self::Sound(Sound::read(&path).map_err(refused)?)),
            (None, None, Some(path), None, None) => Ok(Self::Image(Image::read(&path).map_err(refused)?)),
            (None, None, None, Some(features), None) => Ok(Self::Features(features.as_array().to_owned())),
            (None, None, None, None, Some(pixels)) => Ok(Self::Pixels(pixels.as_array().to_owned())),
            _ => Err(PyTypeError::new_err("read() takes one source: a text or ids, audio, image, features or pixels")),
        }
    }

    pub(crate) fn read(&self, model: &Model, edits: &Edits, sources: &Sources) -> regard_model::Result<Run> {
        let input = match self {
            Self::Ids(ids) => Input::Ids(ids),
            Self::Sound(sound) => Input::Sound(sound),
            Self::Image(image) => Input::Image(image),
            Self::Features(features) => Input::Features(features.view()),
            Self::Pixels(pixels) => Input::Pixels(pixels.view()),
        };
        model.read(input, edits, sources)
    }
}
