//! Fields of a path that the schema of a kind does not have.

use kollect_model::schema::AttributeType;

use super::{
    Path, PathError,
    steps::{ChildSelector, PathSteps},
};
use crate::extract::schema::{Field, Shape, ShapeKind, no_field};

impl Path {
    /// What the schema shows about a path whose attribute has a declared type; positions are in its text.
    pub(crate) fn schema_warnings(
        &self,
        text: &str,
        object: Shape<'_>,
        declared: Option<AttributeType>,
    ) -> Vec<PathError> {
        let mut warnings = Vec::new();
        let found = follow(&self.0, object, text, &mut warnings);
        if let (Some(shape), Some(declared)) = (found, declared)
            && let Some(name) = never(shape.kind(), declared, self.is_definite())
        {
            let problem = format!("the value is a {name}, which can never be the type {}", declared.name());
            warnings.push(PathError { at: 0, problem });
        }
        warnings
    }
}

/// The shape that the steps lead to, if that is known.
fn follow<'s>(
    steps: &PathSteps,
    object: Shape<'s>,
    text: &str,
    warnings: &mut Vec<PathError>,
) -> Option<Shape<'s>> {
    let mut shape = object;
    // Names are looked for behind those of the steps before.
    let mut behind = 0;
    for step in steps.iter() {
        if step.deep {
            return None;
        }
        let mut field = |shape: Shape<'s>, name: &str| match (shape.kind(), shape.field(name)) {
            (ShapeKind::Map(values), _) => Some(values),
            (ShapeKind::Fields, Field::Known(field)) => Some(field),
            (ShapeKind::Fields, Field::Missing(similar)) => {
                let at = text.get(behind..).and_then(|rest| rest.find(name)).unwrap_or_default() + behind;
                let at = text.get(..at).unwrap_or_default().chars().count();
                warnings.push(PathError { at, problem: no_field(name, similar.as_deref()) });
                None
            }
            _ => None,
        };
        shape = match (&step.select, shape.kind()) {
            (ChildSelector::Key(name), _) => {
                let found = field(shape, name)?;
                behind += text.get(behind..).and_then(|rest| rest.find(name.as_str())).unwrap_or_default()
                    + name.len();
                found
            }
            (ChildSelector::Keys(names), _) => {
                for name in names {
                    field(shape, name);
                }
                return None;
            }
            (_, ShapeKind::List(items)) => items,
            (ChildSelector::Every, ShapeKind::Map(values)) => values,
            _ => return None,
        };
    }
    Some(shape)
}

/// The name of a shape whose values can never have the declared type. A path that is not definite gives a list, or its only item.
fn never(kind: ShapeKind<'_>, declared: AttributeType, is_definite: bool) -> Option<&'static str> {
    use AttributeType as D;
    if !is_definite && declared == D::List {
        return None;
    }
    let (name, fits) = match kind {
        ShapeKind::Any => return None,
        ShapeKind::Bool => ("bool", matches!(declared, D::Bool | D::String)),
        ShapeKind::Int | ShapeKind::Number => {
            ("number", matches!(declared, D::Int | D::Number | D::String | D::Quantity))
        }
        ShapeKind::String => ("string", !matches!(declared, D::List | D::Map)),
        ShapeKind::List(_) => ("list", declared == D::List),
        ShapeKind::Map(_) | ShapeKind::Fields => ("map", declared == D::Map),
    };
    (!fits).then_some(name)
}
