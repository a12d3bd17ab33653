//! Checks responses against the documentation, with the parts of JSON Schema that it uses. Also
//! checks the documentation against the model: the paths in `openapi.json` are handwritten, and the
//! schemas of requests and responses are generated from the types in `observe/model.rs`.

use std::path::Path;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::Serialize as _;
use serde_json::{Map, Value};

use super::super::routes::OPENAPI;
use crate::observe::model::{
    AbortCopyAnswer, AbortCopyRequest, AnaAnswer, AnaRequest, ApplyAnswer, ApplyRequest,
    ClearAnswer, ClearRequest, CopyRequest, DeviceReservations, Event, EvictAnswer,
    EvictClientAnswer, EvictClientRequest, EvictRequest, FileClientStatus, Heatmap, History,
    Refusal, ReopenAnswer, ReopenRequest, RevokeAnswer, RevokeRequest, StartCopyAnswer, Status,
    UpgradeAnswer, UpgradeRequest, WrongConfiguration,
};

#[test]
fn openapi_schemas_match_the_model() {
    let mut document: Value = serde_json::from_str(OPENAPI).expect("JSON");
    let mut schemas = Map::new();
    // Chrome's format, which the model does not define.
    schemas.extend([(
        "Trace".to_owned(),
        document["components"]["schemas"]["Trace"].clone(),
    )]);
    let serializer = SchemaSettings::draft2020_12().for_serialize();
    add::<Status>(&mut schemas, &serializer);
    add::<History>(&mut schemas, &serializer);
    add::<Heatmap>(&mut schemas, &serializer);
    add::<Event>(&mut schemas, &serializer);
    add::<ApplyAnswer>(&mut schemas, &serializer);
    add::<ReopenAnswer>(&mut schemas, &serializer);
    add::<DeviceReservations>(&mut schemas, &serializer);
    add::<ClearAnswer>(&mut schemas, &serializer);
    add::<EvictAnswer>(&mut schemas, &serializer);
    add::<FileClientStatus>(&mut schemas, &serializer);
    add::<EvictClientAnswer>(&mut schemas, &serializer);
    add::<AnaAnswer>(&mut schemas, &serializer);
    add::<UpgradeAnswer>(&mut schemas, &serializer);
    add::<StartCopyAnswer>(&mut schemas, &serializer);
    add::<AbortCopyAnswer>(&mut schemas, &serializer);
    add::<RevokeAnswer>(&mut schemas, &serializer);
    add::<Refusal>(&mut schemas, &serializer);
    add::<WrongConfiguration>(&mut schemas, &serializer);
    let requests = SchemaSettings::draft2020_12().for_deserialize();
    add::<ApplyRequest>(&mut schemas, &requests);
    add::<ReopenRequest>(&mut schemas, &requests);
    add::<ClearRequest>(&mut schemas, &requests);
    add::<EvictRequest>(&mut schemas, &requests);
    add::<EvictClientRequest>(&mut schemas, &requests);
    add::<AnaRequest>(&mut schemas, &requests);
    add::<UpgradeRequest>(&mut schemas, &requests);
    add::<CopyRequest>(&mut schemas, &requests);
    add::<AbortCopyRequest>(&mut schemas, &requests);
    add::<RevokeRequest>(&mut schemas, &requests);
    let schemas = Value::Object(schemas);
    let same = document["components"]["schemas"] == schemas;
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        document["components"]["schemas"] = schemas;
        let indent = serde_json::ser::PrettyFormatter::with_indent(b" ");
        let mut text = Vec::new();
        let mut writer = serde_json::Serializer::with_formatter(&mut text, indent);
        document.serialize(&mut writer).expect("JSON");
        text.push(b'\n');
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/control/openapi.json");
        std::fs::write(path, text).expect("writable");
        return;
    }
    assert!(
        same,
        "openapi.json differs from observe/model.rs: UPDATE_EXPECTED=1 cargo test --workspace \
         --all-features openapi_schemas_match_the_model"
    );
}

/// Adds the schemas of `T` and of its parts.
fn add<T: JsonSchema>(schemas: &mut Map<String, Value>, settings: &SchemaSettings) {
    let mut settings = settings.clone();
    settings.definitions_path = "/components/schemas".into();
    // A response has only documented properties.
    let mut settings = settings.with_transform(RecursiveTransform(|schema: &mut Schema| {
        if schema.get("properties").is_some() {
            schema.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
    }));
    settings.meta_schema = None;
    let mut generator = settings.into_generator();
    let _ = generator.subschema_for::<T>();
    for (name, schema) in generator.take_definitions(true) {
        let known = schemas.insert(name.clone(), schema.clone());
        assert!(
            known.is_none_or(|known| known == schema),
            "{name} has two schemas"
        );
    }
}

/// Checks the response of `GET path`.
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
    if let Some(choices) = schema["anyOf"].as_array() {
        let fits = choices
            .iter()
            .any(|it| matches(document, it, value, at).is_ok());
        return fits
            .then_some(())
            .ok_or_else(|| format!("{at}: {value} fits no choice"));
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
    if let Some(word) = schema.get("const")
        && word != value
    {
        return Err(format!("{at}: {value} is not {word}"));
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
