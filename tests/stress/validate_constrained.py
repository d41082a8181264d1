"""Holds lines of {"schema", "output"} to their schemas with Python's jsonschema."""
import json
import sys

import jsonschema


def main():
    wrong = lines = 0
    for line in open(sys.argv[1], encoding='utf-8'):
        case = json.loads(line)
        lines += 1
        validator = jsonschema.Draft202012Validator(
            case['schema'], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        try:
            validator.validate(json.loads(case['output']))
        except (ValueError, jsonschema.ValidationError) as error:
            wrong += 1
            print(f'{case["output"]}: {error}')
    print(f'{lines} outputs judged by jsonschema, {wrong} wrong')
    return 1 if wrong or not lines else 0


if __name__ == '__main__':
    sys.exit(main())
