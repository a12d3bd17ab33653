//! Whether an answer is what the documentation says: the parts of JSON Schema that it uses.

use serde_json::Value;

use super::super::routes::OPENAPI;

/// Checks the answer of `GET path`.
#[track_caller]
pub(super) fn check(path: &str, value: &Value) {
    let document: Value = serde_json::from_str(OPENAPI).expect("JSON");
    let (path, _) = path.split_once('?').unwrap_or((path, ""));
    let good = &document["paths"][path]["get"]["responses"]["200"];
    let schema = &good["content"]["application/json"]["schema"];
    assert!(schema.is_object(), "{path} has no schema");
    if let Err(problem) = matches(&document, schema, value, path) {
        panic!("{problem}");
    }
}

fn matches(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let schema = document
            .pointer(&reference[1..])
            .ok_or_else(|| format!("no {reference}"))?;
        return matches(document, schema, value, at);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = |choice: &&Value| matches(document, choice, value, at).is_ok();
        return match choices.iter().filter(fits).count() {
            1 => Ok(()),
            count => Err(format!("{at}: {count} of the choices fit {value}")),
        };
    }
    let types = match &schema["type"] {
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        one => vec![
            one.as_str()
                .ok_or_else(|| format!("{at}: no type in {schema}"))?,
        ],
    };
    if !types.iter().any(|one| is_of_type(one, value)) {
        return Err(format!("{at}: {value} is no {types:?}"));
    }
    if let Some(words) = schema["enum"].as_array() {
        let known = words.contains(value);
        return known
            .then_some(())
            .ok_or_else(|| format!("{at}: {value} is none of {words:?}"));
    }
    match value {
        Value::Array(all) => all.iter().enumerate().try_for_each(|(index, one)| {
            matches(document, &schema["items"], one, &format!("{at}[{index}]"))
        }),
        Value::Object(all) => {
            let required = schema["required"].as_array().into_iter().flatten();
            for key in required.filter_map(Value::as_str) {
                all.get(key)
                    .ok_or_else(|| format!("{at}.{key} is missing"))?;
            }
            all.iter().try_for_each(|(key, one)| {
                let known = schema["properties"].get(key);
                let schema = known.unwrap_or(&schema["additionalProperties"]);
                let at = format!("{at}.{key}");
                if !schema.is_object() {
                    return Err(format!("{at} is not documented"));
                }
                matches(document, schema, one, &at)
            })
        }
        _ => Ok(()),
    }
}

fn is_of_type(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => false,
    }
}
