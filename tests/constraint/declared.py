"""Members of an instance in the order that a schema declares, as docs/structured-output.md defines it."""

IN_PLACE_LISTS = ('allOf', 'anyOf', 'oneOf')
IN_PLACE = ('not', 'if', 'then', 'else')
OLD = ('draft-04', 'draft-06', 'draft-07')


class Schemas:
    def __init__(self, root):
        self.root = root
        dialect = root.get('$schema', '') if isinstance(root, dict) else ''
        self.lone_ref = any(old in dialect for old in OLD)
        self.named = {}
        self.place = {}  # id -> place in the text
        self.index(root)

    def index(self, node):
        if isinstance(node, dict):
            self.place[id(node)] = len(self.place)
            for key in ('$id', 'id', '$anchor', '$dynamicAnchor'):
                value = node.get(key)
                if isinstance(value, str):
                    self.named.setdefault(value if key.endswith('d') else '#' + value, node)
            for value in node.values():
                self.index(value)
        elif isinstance(node, list):
            for value in node:
                self.index(value)

    def resolve(self, reference):
        if reference in self.named:
            return self.named[reference]
        base, _, fragment = reference.partition('#')
        node = self.root
        if base:
            found = [v for k, v in self.named.items() if k.rstrip('#').endswith(base)]
            if not found:
                return None
            node = found[0]
        if not fragment.startswith('/'):
            return self.named.get('#' + fragment, node if not fragment else None)
        from urllib.parse import unquote
        for step in unquote(fragment).split('/')[1:]:
            step = step.replace('~1', '/').replace('~0', '~')
            if isinstance(node, list):
                node = node[int(step)] if step.isdigit() and int(step) < len(node) else None
            elif isinstance(node, dict):
                node = node.get(step)
            if node is None:
                return None
        return node

    def follow(self, schema):
        for _ in range(20):
            if not isinstance(schema, dict) or not isinstance(schema.get('$ref'), str):
                break
            schema = self.resolve(schema['$ref'])
        return schema

    def plainly_not(self, schema, value, depth=3):
        """Whether the schema obviously does not hold, so that the value belongs to another branch."""
        schema = self.follow(schema)
        if schema is False:
            return True
        if not isinstance(schema, dict) or depth == 0:
            return False
        types = {dict: 'object', list: 'array', str: 'string', bool: 'boolean', type(None): 'null'}
        wanted = schema.get('type')
        if isinstance(wanted, (str, list)):
            kind = types.get(type(value), 'number')
            given = {kind, 'integer'} if kind == 'number' else {kind}
            if not given & set([wanted] if isinstance(wanted, str) else wanted):
                return True
        if 'const' in schema and schema['const'] != value:
            return True
        if isinstance(schema.get('enum'), list) and value not in schema['enum']:
            return True
        if any(self.plainly_not(each, value, depth - 1) for each in schema.get('allOf') or []):
            return True
        if isinstance(value, dict):
            required = schema.get('required')
            if isinstance(required, list) and any(name not in value for name in required):
                return True
            properties = schema.get('properties') or {}
            if schema.get('additionalProperties') is False and not schema.get('patternProperties'):
                if any(name not in properties for name in value):
                    return True
            return any(self.plainly_not(child, value[name], depth - 1) for name, child in properties.items()
                       if name in value)
        return False

    def closure(self, schemas, value):
        """The schemas, and all schemas that apply in the same place, in the declared order."""
        out, seen = [], set()
        schemas = [self.follow(schema) if self.lone_ref else schema for schema in schemas]
        schemas = sorted((s for s in schemas if isinstance(s, dict)), key=lambda s: self.place.get(id(s), 0))

        def visit(schema):
            if not isinstance(schema, dict) or id(schema) in seen:
                return
            seen.add(id(schema))
            reference = schema.get('$ref')
            if isinstance(reference, str) and self.lone_ref:
                visit(self.resolve(reference))
                return
            out.append(schema)
            for key in ('$ref', '$dynamicRef'):
                if isinstance(schema.get(key), str):
                    visit(self.resolve(schema[key]))
            for key in IN_PLACE_LISTS:
                for child in schema.get(key) or []:
                    if key == 'allOf' or not self.plainly_not(child, value):
                        visit(child)
            for key in IN_PLACE:
                visit(schema.get(key))
            for key in ('dependentSchemas', 'dependencies'):
                if isinstance(schema.get(key), dict):
                    for child in schema[key].values():
                        visit(child)

        for schema in schemas:
            visit(schema)
        return out

    def below(self, schemas, name):
        import re
        out = []
        for schema in schemas:
            known = False
            properties = schema.get('properties')
            if isinstance(properties, dict) and name in properties:
                known = True
                out.append(properties[name])
            for pattern, child in (schema.get('patternProperties') or {}).items():
                try:
                    matches = re.search(pattern, name)
                except re.error:
                    matches = False
                if matches:
                    known = True
                    out.append(child)
            if not known and 'additionalProperties' in schema:
                out.append(schema['additionalProperties'])
            out.append(schema.get('unevaluatedProperties'))
            for values in ([schema['const']] if 'const' in schema else []) + [schema.get('enum') or []]:
                for value in values if isinstance(values, list) else [values]:
                    if isinstance(value, dict) and name in value:
                        out.append({'const': value[name]})
        return out

    def items(self, schemas, index):
        out = []
        for schema in schemas:
            prefix = schema.get('prefixItems', [])
            rest = schema.get('items')
            if isinstance(rest, list):
                prefix, rest = rest, schema.get('additionalItems')
            out.append(prefix[index] if isinstance(prefix, list) and index < len(prefix) else rest)
            out.append(schema.get('contains'))
            out.append(schema.get('unevaluatedItems'))
        return out

    def order(self, value, schemas):
        schemas = self.closure(schemas, value)
        if isinstance(value, list):
            return [self.order(item, self.items(schemas, i)) for i, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        ranks = {}
        for schema in schemas:
            properties = schema.get('properties')
            for name in properties if isinstance(properties, dict) else []:
                ranks.setdefault(name, len(ranks))
            required = schema.get('required')
            for name in required if isinstance(required, list) else []:
                ranks.setdefault(name, len(ranks))
            for key in ('dependentRequired', 'dependentSchemas', 'dependencies'):
                for name, needed in (schema.get(key) or {}).items():
                    for each in [name] + (needed if isinstance(needed, list) else []):
                        ranks.setdefault(each, len(ranks))
        # Values of const and enum come last.
        for schema in schemas:
            for value_of in [schema.get('const')] + list(schema.get('enum') or []):
                if isinstance(value_of, dict):
                    for name in value_of:
                        ranks.setdefault(name, len(ranks))
        names = sorted(value, key=lambda name: (ranks.get(name, len(ranks)), name.encode()))
        return {name: self.order(value[name], self.below(schemas, name)) for name in names}


def in_declared_order(instance, schema):
    if not isinstance(schema, dict):
        return instance
    return Schemas(schema).order(instance, [schema])
