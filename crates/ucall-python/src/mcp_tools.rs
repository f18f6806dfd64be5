//! Tools of the Model Context Protocol, as Python describes them.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ucall_server::{ResultSchema, Tool, ToolForm};

use crate::server::Server;

/// The name of a tool, the method that it calls, the form of its result, the schema
/// that the method's result must fit, and the params that have headers with the ends of the
/// headers' names.
type DescribedTool = (String, String, String, Option<String>, Vec<(String, String)>);

/// Replaces the tools of a server.
#[pyfunction]
pub(crate) fn set_tools(server: &Bound<'_, Server>, tools: Vec<DescribedTool>) -> PyResult<()> {
    let tools = tools.into_iter().map(tool).collect::<PyResult<_>>()?;
    server.get().procedures.set_tools(tools);
    Ok(())
}

fn tool((name, method, form, schema, headers): DescribedTool) -> PyResult<Tool> {
    let headers = headers.into_iter();
    let headers = headers.map(|(param, header)| (param, format!("Mcp-Param-{header}"))).collect();
    let schema = schema.map(|it| ResultSchema::new(it.as_bytes()));
    Ok(Tool { name, method, form: tool_form(&form)?, schema, headers })
}

/// What becomes of a tool's result: `text`, `value`, `object`, `result`, or a kind and a media
/// type.
fn tool_form(form: &str) -> PyResult<ToolForm> {
    let (kind, media) = form.split_once(' ').unwrap_or((form, ""));
    Ok(match kind {
        "text" => ToolForm::Text,
        "value" => ToolForm::Value,
        "object" => ToolForm::Object,
        "result" => ToolForm::Whole,
        "image" => ToolForm::Image(media.to_owned()),
        "audio" => ToolForm::Audio(media.to_owned()),
        "blob" => ToolForm::Blob(media.to_owned()),
        _ => return Err(PyValueError::new_err(format!("there is no form {form:?}"))),
    })
}
