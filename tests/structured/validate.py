"""Validates texts with PyPI's jsonschema, independently of this library."""

import decimal
import json

import jsonschema

# Numbers as written, without rounding to floats.
EXACT = {"parse_float": decimal.Decimal, "parse_int": decimal.Decimal}


def refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


def read(text):
    return json.loads(text, parse_constant=refuse_constant, **EXACT)


def is_number(_, value):
    return isinstance(value, (int, decimal.Decimal)) and not isinstance(value, bool)


def is_integer(checker, value):
    return is_number(checker, value) and value == decimal.Decimal(value).to_integral_value()


def divides(validator, divisor, value, schema):
    if not validator.is_type(value, "number"):
        return
    with decimal.localcontext() as context:
        context.prec = 1000
        if decimal.Decimal(value) % decimal.Decimal(divisor) != 0:
            yield jsonschema.ValidationError(f"{value} is not a multiple of {divisor}")


BASE = jsonschema.Draft202012Validator
VALIDATOR = jsonschema.validators.extend(
    BASE, {"multipleOf": divides}, type_checker=BASE.TYPE_CHECKER.redefine_many({"number": is_number, "integer": is_integer}))


def validator_of(schema):
    """schema: parsed by json, with its number types."""
    BASE.check_schema(schema)
    return VALIDATOR(read(json.dumps(schema)), format_checker=BASE.FORMAT_CHECKER)


def fault_of(validator, text):
    """The error in the text; "" if there is none."""
    try:
        value = read(text)
    except ValueError as fault:
        return f"no JSON: {fault}"
    fault = next(validator.iter_errors(value), None)
    return "" if fault is None else f"{fault.json_path}: {fault.message}"
