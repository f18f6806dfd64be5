//! Models of the Open Inference Protocol, as Python describes them, and what the fields of forms
//! are by the annotations of functions.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ucall_proto::{Datatype, InferenceModel, InputForm, ModelInput, ModelOutput, ParamKind};
use ucall_server::RouteAccess;

use crate::convert::Convert;
use crate::procedure::{CallMode, Procedure, Signature};
use crate::server::Server;

/// The name of a model, which is that of its method, its inputs with their forms, its outputs with
/// the datatypes of those that are no arrays, whether the items of a list are outputs, and its
/// metadata and its configuration as JSON text.
pub(crate) type DescribedModel =
    (String, Vec<(String, String)>, Vec<(String, Option<String>)>, bool, String, String);

/// Has a server answer the Open Inference Protocol at `/v2`. While it is ready itself, `check`
/// returns what [`inference_readiness`] does, or a future of that. It must not block.
#[pyfunction]
pub(crate) fn insert_inference(py: Python<'_>, server: &Bound<'_, Server>, check: Py<PyAny>) {
    let name = "/v2/health/ready".to_owned();
    let procedure = Procedure {
        route: Some(RouteAccess::Public.into()),
        ..Procedure::new(name, check, None, py.None(), CallMode::Future)
    };
    server.get().procedures.insert_inference(Some(procedure.shared()));
}

/// Replaces the models of a server, and its metadata, JSON text.
#[pyfunction]
pub(crate) fn set_models(
    server: &Bound<'_, Server>,
    metadata: &str,
    models: Vec<DescribedModel>,
) -> PyResult<()> {
    let models = models.into_iter().map(model).collect::<PyResult<_>>()?;
    server.get().procedures.set_models(metadata, models);
    Ok(())
}

/// The response of `/v2/health/ready` as bytes; `problem` is why the program is not ready, or None.
#[pyfunction]
pub(crate) fn inference_readiness<'py>(
    py: Python<'py>,
    problem: Option<&str>,
) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &ucall_server::inference_readiness(problem))
}

fn model(described: DescribedModel) -> PyResult<InferenceModel> {
    let (name, inputs, outputs, returns_items, metadata, config) = described;
    let input = |(name, form): (String, String)| {
        let form = input_form(&form)?;
        Ok(ModelInput { name, form })
    };
    let output = |(name, datatype): (String, Option<String>)| {
        let datatype = datatype.and_then(|it| Datatype::named(it.as_bytes()));
        ModelOutput { name, datatype }
    };
    Ok(InferenceModel {
        method: name.clone(),
        name,
        inputs: inputs.into_iter().map(input).collect::<PyResult<_>>()?,
        outputs: outputs.into_iter().map(output).collect(),
        returns_items,
        metadata,
        config,
    })
}

fn input_form(form: &str) -> PyResult<InputForm> {
    Ok(match form {
        "array" => InputForm::Array,
        "scalar" => InputForm::Scalar,
        "text" => InputForm::Text,
        "bytes" => InputForm::Bytes,
        "list" => InputForm::List,
        "texts" => InputForm::Texts,
        "bytes_list" => InputForm::BytesList,
        _ => return Err(PyValueError::new_err(format!("there is no form {form:?}"))),
    })
}

impl Procedure {
    /// What a param takes of a form, whose values are texts.
    pub(crate) fn param_kind(&self, name: &str) -> ParamKind {
        let convert =
            self.function().signature.as_ref().and_then(|signature| signature.convert_of(name));
        convert.map_or(ParamKind::Json, kind_of)
    }

    /// The name of the first param.
    pub(crate) fn first_param(&self) -> Option<String> {
        let signature = self.function().signature.as_ref()?;
        let params = signature.params.iter().enumerate();
        let mut named = params.filter(|(at, _)| signature.context != Some(*at));
        named.next().map(|(_, param)| param.name.clone())
    }
}

impl Signature {
    /// What a param is made of.
    fn convert_of(&self, name: &str) -> Option<&Convert> {
        let named = self.params.iter().find(|param| param.name == name);
        let extra = || self.extra.as_ref().and_then(|extra| extra.of(name.as_bytes()));
        named.map(|param| &param.convert).or_else(extra)
    }
}

fn kind_of(convert: &Convert) -> ParamKind {
    match convert {
        Convert::Str => ParamKind::Text,
        Convert::Optional(inner) => kind_of(inner),
        Convert::List(item) => ParamKind::List { is_text: kind_of(item) == ParamKind::Text },
        _ => ParamKind::Json,
    }
}
