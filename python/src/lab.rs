//! The experiments, with the options of their commands. The package makes a function of each (`regard.lab`).

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use regard_lab::experiments::Progress;
use regard_lab::figure::{Figure, Theme};
use regard_lab::{EXPERIMENTS, Entry, Table, Tables, Value, judging, report};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Interval between checks for signals and progress.
const POLL: Duration = Duration::from_millis(50);

/// A table of results.
#[pyclass(name = "_Table", module = "regard._regard", frozen)]
pub(crate) struct PyTable(Table);

fn object<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Number(x) => x.into_pyobject(py)?.into_any(),
        Value::Integer(x) => x.into_pyobject(py)?.into_any(),
        Value::Text(x) => x.into_pyobject(py)?.into_any(),
        Value::Flag(x) => x.into_pyobject(py)?.to_owned().into_any(),
        Value::Missing => py.None().into_bound(py),
    })
}

#[pymethods]
impl PyTable {
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    #[getter]
    fn caption(&self) -> &str {
        &self.0.caption
    }

    /// Names and titles of the columns.
    #[getter]
    fn columns(&self) -> Vec<(&str, &str)> {
        self.0.columns.iter().map(|column| (column.name.as_str(), column.title.as_str())).collect()
    }

    #[getter]
    fn origin<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let origin = PyDict::new(py);
        self.0.origin.iter().try_for_each(|(name, value)| origin.set_item(name, value))?;
        Ok(origin)
    }

    fn __len__(&self) -> usize {
        self.0.rows.len()
    }

    /// The values of a column, by its place.
    fn column<'py>(&self, py: Python<'py>, place: usize) -> PyResult<Bound<'py, PyList>> {
        if place >= self.0.columns.len() {
            return Err(PyValueError::new_err(format!("there are {} columns", self.0.columns.len())));
        }
        let values: Vec<_> = self.0.rows.iter().map(|row| object(py, &row[place])).collect::<PyResult<_>>()?;
        PyList::new(py, values)
    }

    /// The bytes of the file that the command writes.
    fn csv<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_csv())
    }
}

/// A figure.
#[pyclass(name = "_Figure", module = "regard._regard", frozen)]
pub(crate) struct PyFigure(pub(crate) Figure);

fn undrawn(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pymethods]
impl PyFigure {
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    #[getter]
    fn title(&self) -> &str {
        &self.0.title
    }

    #[getter]
    fn caption(&self) -> &str {
        &self.0.caption
    }

    /// The alternative text.
    #[getter]
    fn alt(&self) -> String {
        self.0.alt_text()
    }

    fn svg(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.0.svg()).map_err(undrawn)
    }

    fn png<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.0.png(Theme::Light)).map_err(undrawn)?;
        Ok(PyBytes::new(py, &bytes))
    }
}

/// A progress message.
enum News {
    Expect(u64),
    Advance(u64),
    Warn(String),
}

/// Progress of an experiment, sent to the Python thread; unwinds when the experiment is cancelled.
struct Watched {
    news: Sender<News>,
    stop: Arc<AtomicBool>,
}

/// The panic payload of a cancelled experiment.
struct Stopped;

impl Watched {
    fn tell(&self, news: News) {
        if self.stop.load(Relaxed) {
            resume_unwind(Box::new(Stopped));
        }
        let _ = self.news.send(news);
    }
}

impl Progress for Watched {
    fn expect(&self, steps: u64) {
        self.tell(News::Expect(steps));
    }

    fn advance(&self, steps: u64) {
        self.tell(News::Advance(steps));
    }

    fn warn(&self, what: &str) {
        self.tell(News::Warn(what.to_owned()));
    }
}

fn entry(name: &str) -> PyResult<&'static dyn Entry> {
    let known = || EXPERIMENTS.iter().map(|entry| entry.id()).collect::<Vec<_>>().join(", ");
    let found = EXPERIMENTS.iter().copied().find(|entry| entry.id() == name);
    found.ok_or_else(|| PyValueError::new_err(format!("unknown experiment: {name:?}; the experiments are {}", known())))
}

/// Every experiment: its name, what it is, how it is used, and its options, each with its name, help, default and possible values.
#[pyfunction]
pub(crate) fn _experiments(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for entry in EXPERIMENTS {
        let mut command = entry.command();
        let one = PyDict::new(py);
        one.set_item("id", entry.id())?;
        one.set_item("about", command.get_about().map(ToString::to_string))?;
        one.set_item("help", command.render_long_help().to_string())?;
        let options = PyList::empty(py);
        for argument in command.get_arguments().filter(|argument| argument.get_id() != "help") {
            let option = PyDict::new(py);
            option.set_item("name", argument.get_id().as_str())?;
            option.set_item("long", argument.get_long())?;
            option.set_item("help", argument.get_help().map(ToString::to_string))?;
            let defaults: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
            option.set_item("default", defaults.first())?;
            option.set_item("flag", !argument.get_action().takes_values())?;
            let values: Vec<_> = argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
            option.set_item("values", values)?;
            options.append(option)?;
        }
        one.set_item("options", options)?;
        list.append(one)?;
    }
    Ok(list)
}

type Ran = (Vec<Table>, Vec<Figure>, Option<bool>);

/// The tables that the command writes, verdicts among them, and the figures.
fn run(entry: &'static dyn Entry, words: &[String], watched: &Watched) -> Result<Ran, String> {
    let command = entry.command().no_binary_name(true);
    let matches = command.try_get_matches_from(words).map_err(|error| first_line(&error.to_string()))?;
    let mut tables = Tables::from(entry.run(&matches, watched).map_err(|error| error.to_string())?);
    let agrees = entry.agrees(tables.all());
    judging::put_verdicts(&mut tables);
    let figures = report::draw(&tables).map_err(|error| error.to_string())?;
    Ok((tables.all().to_vec(), figures, agrees))
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or(message).trim_start_matches("error: ").to_owned()
}

/// Runs an experiment with the arguments of its command line; `watch(kind, what)` is called with `expect`, `advance` and `warn`. Ctrl-C
/// ends it.
#[pyfunction]
pub(crate) fn _experiment(
    py: Python<'_>,
    name: &str,
    words: Vec<String>,
    watch: Py<PyAny>,
) -> PyResult<(Vec<PyTable>, Vec<PyFigure>, Option<bool>)> {
    crate::threads::check_variable()?;
    let entry = entry(name)?;
    let (news, heard) = channel();
    let (done, finished) = channel();
    let finished = Mutex::new(finished);
    let stop = Arc::new(AtomicBool::new(false));
    let watched = Watched { news, stop: stop.clone() };
    // Not joined when cancelled: it ends at its next step.
    let worker = std::thread::Builder::new().name(format!("regard-{name}"));
    worker
        .spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| crate::threads::pooled(|| run(entry, &words, &watched))));
            let _ = done.send(result);
        })
        .map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread for the experiment: {error}")))?;
    loop {
        let result = py.detach(|| finished.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(POLL));
        let told = py.check_signals().and_then(|()| {
            heard.try_iter().try_for_each(|news| match news {
                News::Expect(steps) => watch.call1(py, ("expect", steps)).map(drop),
                News::Advance(steps) => watch.call1(py, ("advance", steps)).map(drop),
                News::Warn(what) => watch.call1(py, ("warn", what)).map(drop),
            })
        });
        if let Err(raised) = told {
            stop.store(true, Relaxed);
            return Err(raised);
        }
        match result {
            Ok(Ok(Ok((tables, figures, agrees)))) => {
                return Ok((tables.into_iter().map(PyTable).collect(), figures.into_iter().map(PyFigure).collect(), agrees));
            }
            Ok(Ok(Err(reason))) => return Err(PyValueError::new_err(reason)),
            Ok(Err(panic)) => resume_unwind(panic),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(PyRuntimeError::new_err("the experiment ended without a result")),
        }
    }
}
