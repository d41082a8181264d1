"""Tests of tools/tidy: every rule must fire on a tree that breaks it, and only there."""
import importlib.machinery
import importlib.util
import tempfile
import unittest
from pathlib import Path

loader = importlib.machinery.SourceFileLoader('tidy', str(Path(__file__).with_name('tidy')))
tidy = importlib.util.module_from_spec(importlib.util.spec_from_loader('tidy', loader))
loader.exec_module(tidy)

LAYERS = '0 base: low\n1 text: words\n1 net: bytes\n4 engine: steps\n'
HEAD = '// What it is.\n#pragma once\n'


class TidyTest(unittest.TestCase):

    def problems(self, files):
        """Problems of a tree with `files` besides a minimal clean one."""
        tree = {'tools/layers.txt': LAYERS}
        for folder in ('base', 'text', 'net', 'engine'):
            tree[f'src/{folder}/a.cc'] = 'int F() { return 1; }\n'
        tree.update(files)
        with tempfile.TemporaryDirectory() as name:
            for path, text in tree.items():
                full = Path(name) / path
                full.parent.mkdir(parents=True, exist_ok=True)
                full.write_bytes(text if isinstance(text, bytes) else text.encode())
            return tidy.check_tree(Path(name))

    def assert_clean(self, files):
        self.assertEqual(self.problems(files), [])

    def assert_problem(self, files, path, line, part):
        found = self.problems(files)
        self.assertEqual([(p, n) for p, n, _ in found], [(path, line)], found)
        self.assertIn(part, found[0][2])

    def test_a_clean_tree_is_clean(self):
        self.assert_clean({})

    def test_ranks(self):
        self.assert_clean({'src/text/b.cc': '#include "base/x.h"\n#include "text/y.h"\n'
                                            '#include "deepinfer/status.h"\n#include <map>\n'})
        for target in ('net', 'engine'):
            self.assert_problem({'src/text/b.cc': f'// x\n#include "{target}/x.h"\n'},
                                'src/text/b.cc', 2, f'includes {target}')
        self.assert_problem({'src/text/b.cc': '#include "other/x.h"\n'}, 'src/text/b.cc', 1,
                            'no rank')
        self.assert_problem({'src/text/b.cc': '#include "x.h"\n'}, 'src/text/b.cc', 1,
                            'without its folder')
        self.assert_problem({'examples/e.cc': '#include "base/x.h"\n'}, 'examples/e.cc', 1,
                            'only deepinfer/')
        self.assert_problem({'include/deepinfer/x.h': HEAD + '#include "base/x.h"\n'},
                            'include/deepinfer/x.h', 3, 'only deepinfer/')

    def test_every_folder_has_a_rank(self):
        self.assert_problem({'src/misc/a.cc': 'int x;\n'}, 'src/misc', 1, 'no rank')
        self.assert_problem({'tools/layers.txt': LAYERS + '5 server: edge\n'}, 'tools/layers.txt',
                            1, 'server')

    def test_banned_words(self):
        for word, problem in (('throw 1;', 'throw'), ('using namespace std;', 'using namespace'),
                              ('getenv("X");', 'getenv'), ('#include <sstream>', 'iostreams'),
                              ('std::cerr;', 'iostreams'), ('assert(1);', 'assert'),
                              ('nlohmann::json x;', 'JSON library'), ('// TODO: later', 'TODO')):
            self.assert_problem({'src/text/b.cc': f'int x;\n{word}\n'}, 'src/text/b.cc', 2,
                                problem)
        self.assert_problem({'src/engine/b.cc': 'std::function<void()> f;\n'}, 'src/engine/b.cc',
                            1, 'std::function')
        for path in ('src/text/b_test.cc', 'tests/e2e/x.cc'):
            self.assert_problem({path: 'std::this_thread::sleep_for(1);\n'}, path, 1, 'sleeps')
        self.assert_clean({
            'src/base/env.cc': 'auto x = getenv("X");\n',
            'src/text/b.cc': '// we throw nothing, no getenv\nauto s = "throw";\n'
                             '/* using namespace\n std; */ auto r = R"(throw " x)";\n'
                             'std::function<void()> f; // TODO(#12): x\nint rethrow_count;\n'
                             'void G() { sleep_for(1); }\n'})

    def test_headers(self):
        self.assert_clean({'src/text/b.h': HEAD})
        self.assert_problem({'src/text/b.h': '// What.\nint x;\n'}, 'src/text/b.h', 1, 'pragma')
        self.assert_problem({'src/text/b.h': '#pragma once\n'}, 'src/text/b.h', 1, 'comment')
        self.assert_problem({'src/text/b.h': '// x\n' * 9 + '#pragma once\n'}, 'src/text/b.h', 1,
                            '9 lines')
        self.assert_problem({'include/deepinfer/b.h': HEAD + 'void F(int a, bool fast);\n'},
                            'include/deepinfer/b.h', 3, 'bool')
        self.assert_clean({'include/deepinfer/b.h': HEAD + 'struct S { bool fast = false; };\n'})

    def test_sizes(self):
        self.assert_clean({'src/text/b.cc': 'int x;\n' * 800})
        self.assert_problem({'src/text/b.cc': 'int x;\n' * 801}, 'src/text/b.cc', 1, '801 lines')
        self.assert_clean({'src/text/b.cc': '/' * 100 + '\n// ' + '\u00e9' * 97 + '\n'})
        self.assert_problem({'src/text/b.cc': '/' * 101 + '\n'}, 'src/text/b.cc', 1, '101 columns')

    def function(self, lines, head='int F(int x)'):
        return head + ' {\n' + '  Call();\n' * (lines - 2) + '}\n'

    def test_function_length(self):
        self.assert_clean({'src/text/b.cc': self.function(70) + self.function(70)})
        self.assert_problem({'src/text/b.cc': 'int x;\n' + self.function(71)}, 'src/text/b.cc', 2,
                            '71 lines')
        kernel = 'src/backend/cpu/x_kernel.cc'
        layers = {'tools/layers.txt': LAYERS + '2 backend: device\n'}
        self.assert_clean({kernel: self.function(150), **layers})
        self.assert_problem({kernel: self.function(151), **layers}, kernel, 1, '151 lines')

    def test_function_forms(self):
        long_forms = {
            'member': ('namespace a {\nclass B : public C {\n public:\n' + self.function(71) +
                       '};\n}\n'),
            'constructor': self.function(71, 'B::B(int x) : a_(x), b_(2)'),
            'template': 'template <typename T, class U>\n' + self.function(70, 'T F(U x) const'),
            'operator': self.function(71, 'bool B::operator==(const B& b) const'),
            'trailing': self.function(71, 'auto F() -> int'),
            'test': self.function(71, 'TEST(A, B)'),
            'inner': 'int F() {\n  if (x) {\n' + '  y();\n' * 70 + '  }\n}\n',
        }
        for name, text in long_forms.items():
            self.assertEqual(len(self.problems({'src/text/b.cc': text})), 1, name)
        short_forms = {
            'class': 'class B {\n' + '  int F(int x) { return x; }\n' * 200 + '};\n',
            'table': 'const Row kTable[] = {\n' + '    {1, F(2)},\n' * 200 + '};\n',
            'enum': 'enum class E {\n' + '  kA,\n' * 200 + '};\n',
            'macro': '#define X(a) { \\\n  if (a) { \\\n\nint y;\n' * 60,
            'braces': 'int F() { return S{1}.x + G({2}); }\n' * 200,
        }
        for name, text in short_forms.items():
            self.assertEqual(self.problems({'src/text/b.cc': text}), [], name)

    def test_white_space(self):
        self.assert_problem({'src/text/b.cc': 'int x; \n'}, 'src/text/b.cc', 1, 'trailing')
        self.assert_problem({'STYLE.md': 'text\t \n'.replace('\t ', '  ')}, 'STYLE.md', 1,
                            'trailing')
        self.assert_problem({'src/text/b.cc': '\tint x;\n'}, 'src/text/b.cc', 1, 'tab')
        self.assert_problem({'src/text/b.cc': 'int x;'}, 'src/text/b.cc', 1, 'newline')
        self.assert_problem({'src/text/b.cc': b'// \xff\n'}, 'src/text/b.cc', 1, 'UTF-8')
        self.assert_clean({'tests/golden/data/x.txt': 'a \n\tb'})

    def test_named_paths(self):
        rows = [(line.split()[0], line.split()[1][:-1], line.split(': ')[1])
                for line in LAYERS.splitlines()]
        table = ''.join(f'| {rank} | `{folder}` | {text} |\n' for rank, folder, text in rows)
        self.assert_clean({'ARCHITECTURE.md': table + '`src/text/a.cc` `src/<x>/y.cc` `a/b`\n'})
        self.assert_problem({'ARCHITECTURE.md': table + '`src/text/a.{cc,h}`\n'},
                            'ARCHITECTURE.md', 5, 'src/text/a.h')
        self.assert_problem({'ARCHITECTURE.md': table.replace('words', 'other')},
                            'ARCHITECTURE.md', 1, 'text')
        self.assert_problem({'README.md': 'x\n[a](docs/none.md)\n'}, 'README.md', 2, 'none.md')
        self.assert_clean({'README.md': '[a](tools/layers.txt) [b](https://x.example/y)\n'})

    def test_configuration_and_metrics_are_documented(self):
        config = HEAD + 'struct C {\n  // Size.\n  int max_size = 1;\n  std::string model;\n};\n'
        engine = 'M::M() : a("wait_seconds", "Time."),\n  b("step_tokens",\n  "Tokens.") {}\n'
        server = 'void F() { Counter("vllm:hits", 1); Gauge("deepinfer:ready", 1); }\n'
        layers = {'tools/layers.txt': LAYERS + '5 server: edge\n'}
        files = {'include/deepinfer/config.h': config, 'src/engine/metrics.cc': engine,
                 'src/server/metrics.cc': server, **layers}
        documents = {'docs/configuration.md': '`max_size` `model`\n',
                     'docs/http.md': '`vllm:wait_seconds` `vllm:step_tokens` `vllm:hits_total` '
                                     '`deepinfer:ready`\n'}
        self.assert_clean({**files, **documents})
        for document, text in documents.items():
            for name in text.split():
                found = self.problems({**files, **documents, document: text.replace(name, 'x')})
                self.assertEqual(len(found), 1, name)
                self.assertIn(name.strip('`').replace('_total', ''), found[0][2])


if __name__ == '__main__':
    unittest.main()
